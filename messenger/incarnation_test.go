package messenger

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// Who connects is another incarnation of the peer of a session only if it was
// connected to by the place alone, is the same entity, and has counted further.
func TestPredecessor(t *testing.T) {
	m := newMessenger(t, Config{})
	place := EntityAddr{URL: "tcp://192.0.2.1:6800"}
	was := EntityAddr{URL: place.URL, Nonce: 5}
	c := m.newConnection(OSD, LosslessPeer())
	t.Cleanup(c.cancel)
	c.setDial(AddrVec{place})
	c.peer = EntityName{OSD, 3}
	c.addrs = AddrVec{was}
	c.session.State, c.session.PeerGlobalSeq = session.Standby, 100
	m.mu.Lock()
	defer m.mu.Unlock()
	m.register(c, AddrVec{place, was})
	defer m.unregister(c)
	is := EntityAddr{URL: place.URL, Nonce: 6}
	find := func(name EntityName, at EntityAddr, seq uint64) *Connection {
		require.Nil(t, m.lookup(name.Type, AddrVec{is}), "not by its addresses alone")
		return m.predecessor(&hsResult{peer: name, addrs: AddrVec{{URL: "tcp://192.0.2.1:1", Nonce: at.Nonce}, at}}, seq)
	}
	require.Same(t, c, find(EntityName{OSD, 3}, is, 101))
	require.Nil(t, find(EntityName{OSD, 4}, is, 101), "another entity")
	require.Nil(t, find(EntityName{OSD, -1}, is, 101), "one without a number")
	require.Nil(t, find(EntityName{MDS, 3}, is, 101), "of another type")
	require.Nil(t, find(EntityName{OSD, 3}, EntityAddr{URL: "tcp://192.0.2.2:6800", Nonce: 6}, 101), "elsewhere")
	require.Nil(t, find(EntityName{OSD, 3}, is, 100), "the one before, perhaps")
	c.session.Policy.Lossy = true
	require.Nil(t, find(EntityName{OSD, 3}, is, 101), "there is nothing to go on with")
	c.session.Policy.Lossy = false
	c.dial = AddrVec{was}
	require.Nil(t, find(EntityName{OSD, 3}, is, 101), "that incarnation was meant")
	c.dial = AddrVec{place}
	c.session.State = session.Closed
	require.Nil(t, find(EntityName{OSD, 3}, is, 101), "it is over")
	c.session.State = session.Standby
	require.Same(t, c, find(EntityName{OSD, 3}, is, 101))
}
