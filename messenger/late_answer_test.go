package messenger_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

// The server has taken the client's ident, answered, sent messages, and given the
// transport up, before the client has looked at the answer. It comes back for the
// session, which the client does not know yet, and is told to ask anew. Were the
// answer, and the messages, taken now, they would come once more in the session
// that the server asks for.
func TestLateAnswer(t *testing.T) {
	for name, policy := range map[string]func() Policy{"lossless_peer": LosslessPeer, "lossless_peer_reuse": LosslessPeerReuse} {
		t.Run(name, func(t *testing.T) {
			under(t, func(t *testing.T) {
				d := newDuo(t, policy(), policy(), func(i int, cfg *Config) {
					if i == 1 { // notices soon that the client says nothing
						cfg.KeepaliveInterval, cfg.KeepaliveTimeout = 100*time.Millisecond, 300*time.Millisecond
					}
				})
				hold := func(d time.Duration) func() error {
					var first sync.Once
					return func() error {
						first.Do(func() { time.Sleep(d) })
						return nil
					}
				}
				d.steps[0].set("SERVER_IDENT", hold(2*time.Second))
				d.steps[0].set("CLIENT_IDENT", hold(5*time.Second))
				d.connect(t, 0)
				settle(10 * time.Millisecond)
				back := d.connect(t, 1)
				for n := range uint32(3) {
					send(t, back, n+1)
				}
				settle(time.Second)
				require.Equal(t, 1, d.steps[0].n("> SESSION_RESET"), "the server has come back")
				settle(10 * time.Second)
				send(t, back, 4)
				settle(10 * time.Second)
				require.Equal(t, []uint32{1, 2, 3, 4}, d.rec[0].received())
				require.Equal(t, StateOpen, back.State())
				require.Zero(t, d.Nodes[0].Stats().RemoteResets+d.Nodes[1].Stats().RemoteResets)
			})
		})
	}
}
