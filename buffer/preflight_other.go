//go:build !linux

package buffer

// systemLimits: there are no devices that pin.
func systemLimits() limits { return limits{} }
