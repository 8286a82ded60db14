//go:build !linux

package iwarp

import (
	"net"
	"syscall"
	"time"
	"unsafe"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// iovec is unused where rawConn never returns a connection.
type iovec struct{}

const iovMax = 1024

func makeIovec([]byte) iovec { return iovec{} }

func iovecBytes(*iovec) (unsafe.Pointer, int) { return nil, 0 }

func rawConn(net.Conn) syscall.RawConn { return nil }

func writev(uintptr, []iovec) (int, error) { return 0, driver.ErrNotSupported }

func readv(uintptr, []iovec) (int, error) { return 0, driver.ErrNotSupported }

func wouldBlock(error) bool { return false }

func userTimeout(*net.TCPConn, time.Duration) {}

func maxSegment(net.Conn) int { return 0 }
