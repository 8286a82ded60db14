package messenger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// A session that has just been resumed, whose transport is about to be its own,
// does not expire.
func TestExpireSparesWhatHasJustBeenResumed(t *testing.T) {
	m := newMessenger(t, Config{})
	c := m.newConnection(OSD, LosslessPeer())
	c.parted = time.Now().Add(-time.Hour)
	for state, closed := range map[session.State]bool{session.Open: false, session.Connecting: true} {
		c.mu.Lock()
		c.session.State = state
		c.mu.Unlock()
		c.expire(time.Now(), time.Minute)
		require.Equal(t, closed, c.State() == StateClosed, "%v", state)
		c.MarkDown()
		c = m.newConnection(OSD, LosslessPeer())
		c.parted = time.Now().Add(-time.Hour)
	}
	c.MarkDown()
}
