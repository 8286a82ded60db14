//go:build !linux

package buffer

func mappings(uint64, uint64) ([]mapping, bool) { return nil, false }
func regularFile(string) bool                   { return false }
func ofGoHeap(uint64) bool                      { return false }
func checkPages(_, _ uint64, _ bool) error      { return nil }
