// Package ibverbs is the provider for real RDMA devices: InfiniBand, RoCE and
// iWARP adapters, and the kernel's rxe and siw, through libibverbs and
// librdmacm.
//
// It is compiled in with the build tag ibverbs, on Linux with cgo (Debian:
// libibverbs-dev and librdmacm-dev to build, ibverbs-providers to run). Without
// them Open returns an error that says so.
//
// # How a connection is made
//
// The provider opens a device context of its own and never uses
// rdma_create_qp: a queue pair is created and moved to INIT, so that it takes
// receives before a peer can send; its number goes into the parameters of
// rdma_connect or rdma_accept. On RoCE and InfiniBand the provider moves it to
// RTR and RTS itself, with finite retries and a timeout that notices a dead peer
// in seconds; on iWARP the device does. Device, port, GID and addresses follow
// from the IP addresses, as the kernel's connection manager resolves them.
//
// On RoCE and InfiniBand queue pairs can be connected without it, too, by
// attributes that the two sides exchange themselves: verbs.QP.Endpoint and
// Modify. The entry of the GID table is then chosen from Config.Addr, or is
// Config.GIDIndex.
//
// # Goroutines and descriptors
//
// An open device has two goroutines, which end with Close: one reads the
// connection manager's events, one the asynchronous events. Both copy and
// acknowledge an event at once. All descriptors, completion channels too, are
// waited for in the Go netpoller, and cost no thread.
//
// # Locks
//
// From outer to inner: compChannel.waitMu; qp.connMu; cmID.mu; then, each alone,
// device.mu, qp.sendMu, qp.recvMu, srq.mu, cq.mu, compChannel.mu, listener.mu,
// eventQueue.mu. What waits for an event loop (rdma_destroy_id, the destructors)
// is called without a lock.
package ibverbs
