//go:build !linux

package doctor

func (r *Report) system(bool) {}
