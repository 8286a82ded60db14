package messenger

import (
	"errors"
	"os"
	"syscall"
)

const hasSocketPriority = true

// classCS6 is the DSCP class "network control", as Ceph has it, as it stands in the
// TOS octet (linux/ip.h lacks it; netinet/ip.h: IPTOS_CLASS_CS6).
const classCS6 = 0xc0

// setSocket sets the receive buffer, and priority and class, of a socket of IPv6 or
// IPv4. It tries all.
func setSocket(raw syscall.RawConn, v6 bool, cfg *Config) error {
	var errs []error
	set := func(fd, level, option, v int, name string) {
		errs = append(errs, os.NewSyscallError("setsockopt "+name, syscall.SetsockoptInt(fd, level, option, v)))
	}
	err := raw.Control(func(p uintptr) {
		fd := int(p)
		if n := cfg.TCPReceiveBuffer; n != 0 {
			set(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, n, "SO_RCVBUF")
		}
		if cfg.SocketPriority == 0 {
			return
		}
		set(fd, syscall.IPPROTO_IP, syscall.IP_TOS, classCS6, "IP_TOS") // of a socket of IPv6: for IPv4 within it
		if v6 {
			set(fd, syscall.IPPROTO_IPV6, syscall.IPV6_TCLASS, classCS6, "IPV6_TCLASS")
		}
		// The class sets a priority of its own.
		set(fd, syscall.SOL_SOCKET, syscall.SO_PRIORITY, cfg.SocketPriority, "SO_PRIORITY")
	})
	return errors.Join(append(errs, err)...)
}
