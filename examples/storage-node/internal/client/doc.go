// Package client is the client's side of the object protocol: it stores objects on a node and fetches them.
//
// Data larger than a message moves in windows: a buffer of the client's arena is granted to the node for the time of one
// window, the node reads it (PUT) or writes it (GET), and the grant is withdrawn before the buffer is used again or its
// content believed. A transfer has a few windows under way and so a bounded amount of memory, however large the object
// is. Each chunk has a CRC32C, computed once by the client and once by the node.
//
// Errors of the node are *StatusError, which matches its wire.Status; errors of the connection are *messenger.FaultError
// and those of package messenger; all are wrapped in *Error, which says what was asked of whom.
//
// Each window under way has a goroutine, which ends with its answer, and before the transfer returns.
package client
