package messenger

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSocketConfig(t *testing.T) {
	arena := newArena(t)
	dial := func(context.Context, string) (net.Conn, error) { return nil, nil }
	listen := func(context.Context, string) (net.Listener, error) { return nil, nil }
	for name, c := range map[string]struct {
		cfg  Config
		want error
	}{
		"TCPReceiveBuffer = -1":               {Config{TCPReceiveBuffer: -1}, ErrInvalid},
		"SocketPriority = -1, not 1 to 6":     {Config{SocketPriority: -1}, ErrInvalid},
		"SocketPriority = 7, not 1 to 6":      {Config{SocketPriority: 7}, ErrInvalid},
		"TCPReceiveBuffer and SocketPriority": {Config{TCPDelay: true, DialStream: dial}, ErrInvalid},
		"DialStream and ListenStream":         {Config{TCPReceiveBuffer: 1 << 16, ListenStream: listen}, ErrInvalid},
	} {
		c.cfg.Name, c.cfg.Arena = EntityName{OSD, 0}, arena
		_, err := New(c.cfg)
		require.ErrorIs(t, err, c.want, name)
		require.ErrorContains(t, err, name)
	}
	if !hasSocketPriority {
		_, err := New(Config{Name: EntityName{OSD, 0}, Arena: arena, SocketPriority: 1})
		require.ErrorIs(t, err, ErrNotSupported)
	}
}
