//go:build invariants

package buffer

// invariants: free memory is filled with a pattern, and checked when it is used
// again. All of the arena's memory gets touched.
const invariants = true
