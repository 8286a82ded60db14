//go:build !linux

package iwarp

import (
	"fmt"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

func mlock(_, _ uint64) error {
	return fmt.Errorf("iwarp: pinning: %w on this system", driver.ErrNotSupported)
}

func munlock(_, _ uint64) {}
