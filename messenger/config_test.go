package messenger

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/conn"
)

var errOpened = errors.New("opened")

func neverOpened(conn.Config) (*conn.Endpoint, error) { return nil, errOpened }

func TestConfigRefusals(t *testing.T) {
	a := newArena(t)
	for _, cfg := range []Config{
		{}, {Name: EntityName{OSD, 0}}, {Name: EntityName{OSD, 0}, Arena: a, Workers: -1},
		{Name: EntityName{OSD, 0}, Arena: a, MaxFront: 1 << 30},
		{Name: EntityName{OSD, 0}, Arena: a, MaxData: 1 << 33},
		{Name: EntityName{OSD, 0}, Arena: a, Transports: []Transport{{Scheme: SchemeTCP, Open: neverOpened}}},
		{Name: EntityName{OSD, 0}, Arena: a, Transports: []Transport{{Open: neverOpened}}},
		{Name: EntityName{OSD, 0}, Arena: a, Transports: []Transport{{Scheme: SchemeIWARP}}},
		{Name: EntityName{OSD, 0}, Arena: a, Transports: []Transport{{Scheme: "roce", Open: neverOpened}}},
		{Name: EntityName{OSD, 0}, Arena: a, Transports: []Transport{
			{Scheme: SchemeRDMA, Open: neverOpened}, {Scheme: SchemeIWARP, Open: neverOpened}, {Scheme: SchemeRDMA, Open: neverOpened},
		}},
	} {
		_, err := New(cfg)
		require.ErrorIs(t, err, ErrInvalid)
		require.NotErrorIs(t, err, errOpened)
	}
	m := newMessenger(t, Config{Arena: a, Transports: []Transport{}})
	_, err := m.ConnectTo(OSD, AddrVec{{URL: "rdma://127.0.0.1:1"}})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = m.ConnectTo(OSD, AddrVec{{URL: "127.0.0.1:1"}})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, m.Bind(soon(t), anyAddr(schemeDevice)), ErrInvalid)
}
