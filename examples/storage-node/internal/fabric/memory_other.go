//go:build !linux

package fabric

// MemoryLimit is not known on this system.
func MemoryLimit() Memory { return Memory{} }
