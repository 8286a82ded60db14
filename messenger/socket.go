package messenger

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// maxSocketPriority is the highest SO_PRIORITY that takes no privilege.
const maxSocketPriority = 6

// tunes reports whether sockets are to be other than net makes them.
func (c *Config) tunes() bool { return c.TCPDelay || c.TCPReceiveBuffer != 0 || c.SocketPriority != 0 }

// checkSockets checks what Config says of sockets.
func (c *Config) checkSockets() error {
	switch {
	case c.TCPReceiveBuffer < 0:
		return fmt.Errorf("%w: Config.TCPReceiveBuffer = %d", ErrInvalid, c.TCPReceiveBuffer)
	case c.SocketPriority < 0 || c.SocketPriority > maxSocketPriority:
		return fmt.Errorf("%w: Config.SocketPriority = %d, not 1 to %d", ErrInvalid, c.SocketPriority, maxSocketPriority)
	case c.SocketPriority != 0 && !hasSocketPriority:
		return fmt.Errorf("%w: Config.SocketPriority = %d: there is no SO_PRIORITY here", ErrNotSupported, c.SocketPriority)
	case c.tunes() && (c.DialStream != nil || c.ListenStream != nil):
		return fmt.Errorf("%w: Config.TCPDelay, TCPReceiveBuffer and SocketPriority are for the sockets that DialStream and ListenStream replace", ErrInvalid)
	}
	return nil
}

// dialTCP is Config.DialStream where that is not set.
func (m *Messenger) dialTCP(ctx context.Context, hostport string) (net.Conn, error) {
	var d net.Dialer
	if m.cfg.BindBeforeConnect {
		d.LocalAddr = m.dialFrom(hostport)
	}
	d.Control = m.control()
	nc, err := d.DialContext(ctx, "tcp", hostport)
	if err != nil {
		return nil, err
	}
	m.tune(nc)
	return nc, nil
}

// listenTCP is Config.ListenStream where that is not set.
func (m *Messenger) listenTCP(ctx context.Context, hostport string) (net.Listener, error) {
	lc := net.ListenConfig{Control: m.control()}
	if m.cfg.SocketPriority != 0 {
		lc.SetMultipathTCP(false) // Linux gives its sockets no class
	}
	ln, err := lc.Listen(ctx, "tcp", hostport)
	if err != nil || !m.cfg.tunes() {
		return ln, err
	}
	return tunedListener{ln, m}, nil
}

// tunedListener is a listener whose connections are as Config says.
type tunedListener struct {
	net.Listener
	m *Messenger
}

func (l tunedListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err == nil {
		l.m.tune(nc)
	}
	return nc, err
}

// control is what has a new socket set before it connects, or listens, nil for
// nothing. What accepts hands its receive buffer on, with the window that goes by it.
func (m *Messenger) control() func(network, address string, raw syscall.RawConn) error {
	if !m.cfg.tunes() {
		return nil
	}
	return func(network, address string, raw syscall.RawConn) error {
		m.untuned(address, setSocket(raw, network == "tcp6", &m.cfg))
		return nil
	}
}

// tune sets what net sets after connecting, and what is not handed on by who accepts.
func (m *Messenger) tune(nc net.Conn) {
	t, ok := nc.(*net.TCPConn)
	if !ok || !m.cfg.tunes() {
		return
	}
	raw, err := t.SyscallConn()
	if err == nil {
		at, _ := t.LocalAddr().(*net.TCPAddr)
		err = setSocket(raw, at != nil && at.IP.To4() == nil, &m.cfg)
	}
	if m.cfg.TCPDelay {
		err = errors.Join(err, t.SetNoDelay(false))
	}
	if m.cfg.TCPReceiveBuffer != 0 {
		err = errors.Join(err, t.SetReadBuffer(m.cfg.TCPReceiveBuffer))
	}
	m.untuned(t.RemoteAddr().String(), err)
}

func (m *Messenger) untuned(address string, err error) {
	if err != nil {
		m.log.Warn("socket options", "addr", address, "err", err)
	}
}
