// Package env opens the device that tests run on: the user-space adapter, or
// the RDMA device that the environment names.
//
//	ARGONAUT_RDMA_DEVICE  its name, rxe0 for instance; takes a build with -tags ibverbs
//	ARGONAUT_RDMA_ADDR    an IP address of its interface
//
// Seed is that of a test that draws: ARGONAUT_DELIVERY_SEED repeats a run.
//
// What a test needs of a device beyond what all have it asks for with Need, or
// with UserSpace, which skip. A run that names a device holds the tests that
// skipped against those that were expected to (test/interop/vm).
package env
