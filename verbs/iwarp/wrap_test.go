package iwarp

import (
	"context"
	"net"
)

// plainConn hides the TCP connection, so that the provider goes through Read and Write.
type plainConn struct{ net.Conn }

func (c plainConn) CloseWrite() error { return c.Conn.(*net.TCPConn).CloseWrite() }

type plainListener struct{ net.Listener }

func (l plainListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return plainConn{c}, nil
}

func wrapDial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return plainConn{c}, nil
}

func wrapListen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return plainListener{l}, nil
}
