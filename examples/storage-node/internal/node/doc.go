// Package node is the server of the object protocol: a dispatcher of a messenger on top of a store.
//
// Each connection has a session, and a session the transfers that its client has under way. A PUT is pulled window by
// window out of the client's granted buffers into the node's and written to the disk from there; a GET is read from the
// disk into the node's buffers, checked, and pushed into the client's.
//
// # Goroutines
//
// A transfer has two goroutines, so that the network and the disk work at the same time: a PUT fetches and writes, a GET
// reads and pushes. They are started by the request that begins the transfer, and end when the transfer ends: with its
// last window, an error, an end request, its idle time, the end of the connection, or Close, which waits for them. Short
// requests are handled by the messenger's workers.
//
// # Locks
//
// Node.mu before transfer.mu. Neither is held while anything blocks.
package node
