//go:build !invariants

package buffer

const invariants = false
