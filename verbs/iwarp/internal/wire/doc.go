// Package wire encodes and decodes what iwarp puts on the wire: MPA (RFC 5044, 6581), DDP (RFC 5041), RDMAP (RFC 5040)
// and the atomic and immediate data messages of RFC 7306, one file per layer.
//
// Everything is in network byte order except the MPA checksum, which is the little-endian form of the reflected CRC32C.
// Encoders append to or fill a caller's slice and never fail: their arguments are ours. Decoders borrow their argument,
// never panic, allocate only for an error, and return a *DecodeError that names the Terminate code a peer is to be told.
package wire
