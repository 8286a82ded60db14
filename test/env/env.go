package env

import (
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// Seed is what a test draws from: ARGONAUT_DELIVERY_SEED, or a new one. The log has
// it, so that a run that failed can be repeated.
func Seed(tb testing.TB) uint64 {
	tb.Helper()
	seed := rand.Uint64()
	if v := os.Getenv("ARGONAUT_DELIVERY_SEED"); v != "" {
		var err error
		seed, err = strconv.ParseUint(v, 10, 64)
		require.NoError(tb, err)
	}
	tb.Logf("ARGONAUT_DELIVERY_SEED=%d", seed)
	return seed
}

// Device is the name of the RDMA device; "" is the user-space adapter.
func Device() string { return os.Getenv("ARGONAUT_RDMA_DEVICE") }

// Addr is the IP address that tests listen on.
func Addr() string {
	if a := os.Getenv("ARGONAUT_RDMA_ADDR"); Device() != "" && a != "" {
		return a
	}
	return "127.0.0.1"
}

// ListenAddr is Addr with any port.
func ListenAddr() string { return net.JoinHostPort(Addr(), "0") }

// closeTimeout is what QP.Close may take: siw lets go of a connection that is
// being made after 10 s.
const closeTimeout = 20 * time.Second

// OpenDriver opens the device without the core of package verbs. Whoever calls
// it closes it.
func OpenDriver(tb testing.TB) driver.Device {
	tb.Helper()
	if Device() == "" {
		d, err := iwarp.OpenDriver(iwarp.Config{})
		require.NoError(tb, err)
		return d
	}
	d, err := ibverbs.OpenDriver(ibverbs.Config{Device: Device(), Addr: Addr()})
	require.NoError(tb, err)
	return d
}

// Open opens the device. Whoever calls it closes it.
func Open(tb testing.TB) *verbs.Device {
	tb.Helper()
	return Core(tb, OpenDriver(tb))
}

// Core puts the core of package verbs on d.
func Core(tb testing.TB, d driver.Device) *verbs.Device {
	tb.Helper()
	dev, err := verbs.NewDevice(d, verbs.Config{CloseTimeout: closeTimeout})
	require.NoError(tb, err)
	return dev
}

// Need skips the test, with the reason, unless ok.
func Need(tb testing.TB, ok bool, reason string) {
	tb.Helper()
	if !ok {
		tb.Skipf("skipped on %s: %s", Device(), reason)
	}
}

// UserSpace skips a test that is about the user-space adapter, or tampers with
// its connections, where a device of the kernel is tested.
func UserSpace(tb testing.TB, reason string) {
	tb.Helper()
	Need(tb, Device() == "", reason)
}
