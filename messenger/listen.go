package messenger

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// acceptPause is how long accepting pauses after a failure that may pass, such
// as too many open files.
const acceptPause = 50 * time.Millisecond

func (m *Messenger) accept(ln net.Listener) {
	defer m.wg.Done()
	for {
		nc, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			m.log.Error("accept failed", "addr", ln.Addr().String(), "err", err)
			select {
			case <-time.After(acceptPause):
			case <-m.stop:
				return
			}
			continue
		}
		l := m.newLink(SchemeTCP, nc.RemoteAddr().String(), true)
		if !m.admitLink(l) {
			nc.Close()
			continue
		}
		m.wg.Add(1)
		go m.serveStream(l, nc) // ends with the link
	}
}

// serveStream runs an incoming link: the handshake, then its reader.
func (m *Messenger) serveStream(l *link, nc net.Conn) {
	defer m.wg.Done()
	t := l.newStream(nc)
	ctx, cancel := context.WithCancel(context.Background())
	if !l.attach(t, cancel) {
		return
	}
	if err := l.handshakeStream(t, l.params(nil, endOf(nc.LocalAddr()), seenAddr(nc.RemoteAddr()), msgr2.Addr{})); err != nil {
		l.fail("handshake", frameError(err))
		return
	}
	l.readStream(ctx, t)
}
