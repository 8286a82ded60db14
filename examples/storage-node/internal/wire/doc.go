// Package wire is the object protocol between a storage node and its clients: what travels in the front of a messenger
// message. PROTOCOL.md in the directory of the program has the drawings.
//
// Everything is little endian. A front starts with the version of the protocol. Encoders append to a slice; decoders
// accept any input, check every length against what is there and against a limit, refuse what is left over, and return
// errors that match ErrMalformed or ErrVersion. What they return shares no memory with the input.
package wire
