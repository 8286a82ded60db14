// Package fault holds tests of what happens when memory, peers and devices go
// away at the worst moment.
//
// The tests run on the user-space adapter. With the build tag ibverbs they run
// on a device of the kernel's, too: ARGONAUT_TEST_DEVICE names it, and
// ARGONAUT_TEST_ADDR is an address that it serves.
package fault
