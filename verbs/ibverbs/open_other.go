//go:build !(ibverbs && linux && cgo)

package ibverbs

import (
	"fmt"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// Built says whether this program has the provider.
const Built = false

// Open returns an error that matches verbs.ErrNotSupported and says how to build
// a program that has the provider.
func Open(Config) (*verbs.Device, error) { return nil, notBuilt() }

// OpenDriver is like Open.
func OpenDriver(Config) (driver.Device, error) { return nil, notBuilt() }

func notBuilt() error {
	return fmt.Errorf("ibverbs: this program was built without the provider for RDMA devices: install the "+
		"development files of libibverbs and librdmacm (Debian, Ubuntu: apt install libibverbs-dev librdmacm-dev; "+
		"Fedora, RHEL: dnf install rdma-core-devel) and build on Linux with CGO_ENABLED=1 go build -tags ibverbs: %w",
		verbs.ErrNotSupported)
}
