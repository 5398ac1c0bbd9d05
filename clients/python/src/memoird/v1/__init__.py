"""The messages of the contract, as protoc makes them."""
