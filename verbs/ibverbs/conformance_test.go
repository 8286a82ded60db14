//go:build ibverbs && linux && cgo

package ibverbs

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// What a device is known to lack something for.
var (
	// skipsOfAll: the provider has no scoped keys, and limits of the devices
	// here are too large to reach: TestLimitOfCgroup has one that is not.
	skipsOfAll = []string{
		"LimitsExhausted", "ScopedKeyInside", "ScopedKeyHoldsRegionAndQP", "ScopedKeyEndUnderWrites",
		"ScopedKeyEndUnderReads", "ScopedKeyOfOtherQP", "ScopedKeyInvalidatedByPeer", "ScopedKeyInvalidatedWithPayload", "ScopedKeyManyTimes",
		"ScopedKeyRefusals", "ScopedKeyBeforeStart", "ScopedKeyAcrossStart", "ScopedKeyAcrossEnd",
		"ScopedKeyPastEnd", "ScopedKeyReadAcrossEnd", "ScopedKeyReadPastEnd", "ScopedKeyWriteWithoutRight",
		"ScopedKeyReadWithoutRight",
	}
	skips = map[string][]string{
		"rxe0": append([]string{ // its windows do not confine
			"WindowEndUnderWrites", "WindowEndUnderReads",
			"WindowBeforeStart", "WindowAcrossStart", "WindowAcrossEnd", "WindowPastEnd", "WindowReadAcrossEnd",
			"WindowReadPastEnd", "WindowWriteWithoutRight", "WindowReadWithoutRight", "OutOfBandNotOffered",
		}, skipsOfAll...),
		"siw0": append([]string{
			"ReadManySGEs", "ReceiverNotReadyForEver", "SolicitedEvents", "SolicitedForms", "ReadWithoutRight", "ReadLocalKey",
			"SendWithImmediate", "WriteWithImmediate", "FetchAdd", "CompareSwap", "AtomicsOfMany", "AtomicViolations",
			"InvalidateOrdinaryKey", "WindowRebound", "WindowInvalidatedLocally", "WindowInside",
			"WindowHoldsRegionAndQP", "WindowEndUnderWrites", "WindowEndUnderReads", "WindowOfOtherQP",
			"WindowInvalidatedByPeer", "WindowInvalidatedWithPayload", "WindowManyTimes", "WindowRefusals", "WindowBeforeStart", "WindowAcrossStart",
			"WindowAcrossEnd", "WindowPastEnd", "WindowReadAcrossEnd", "WindowReadPastEnd", "WindowWriteWithoutRight",
			"WindowReadWithoutRight", "OutOfBand", "OutOfBandManyTimes", "OutOfBandRefusals",
			"OutOfBandWrongState", "OutOfBandPeerGone",
		}, skipsOfAll...),
	}
)

func TestConformance(t *testing.T) {
	name, addr := os.Getenv("ARGONAUT_RDMA_DEVICE"), os.Getenv("ARGONAUT_RDMA_ADDR")
	if name == "" {
		t.Skip("no RDMA device: ARGONAUT_RDMA_DEVICE is not set")
	}
	verbstest.Run(t, verbstest.Config{
		Open: func(tb testing.TB) *verbs.Device {
			// siw lets go of a connection that is being made after 10 s.
			d, err := Open(Config{Device: name, Addr: addr, Core: verbs.Config{CloseTimeout: 20 * time.Second}})
			require.NoError(tb, err)
			return d
		},
		OpenDriver: func(tb testing.TB) driver.Device {
			d, err := OpenDriver(Config{Device: name, Addr: addr})
			require.NoError(tb, err)
			return d
		},
		ListenAddr: net.JoinHostPort(addr, "0"),
		Skips:      skips[name],
	})
}
