//go:build !linux

package buffer

import "fmt"

func bind([]byte, []int) error {
	return fmt.Errorf("%w: Config.NUMANodes on this system", ErrNotSupported)
}
