// Package fault holds tests of what happens when memory, peers and devices go
// away at the worst moment.
//
// The tests run on the user-space adapter; with the build tag ibverbs, on the
// device of the kernel's that ARGONAUT_RDMA_DEVICE names, with ARGONAUT_RDMA_ADDR
// for an address that it serves.
package fault
