package conn

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// What was sent deferred arrives in its place once somebody rings: Doorbell, or a
// send that is not deferred.
func TestTrySendDeferred(t *testing.T) {
	each(t, func(t *testing.T, cfg nodeConfig) {
		p := newPair(t, cfg, cfg)
		var sent [][]byte
		send := func(f func(Message) (bool, error), n int) bool {
			l, data := p.a.list(n)
			ok, err := f(Message{Head: []byte(fmt.Sprint(len(sent))), Payload: l})
			require.NoError(t, err)
			if !ok {
				l.Release()
				return false
			}
			sent = append(sent, data)
			return true
		}
		for _, rings := range []func(){p.ab.Doorbell, func() { require.NoError(t, p.ab.Send(t.Context(), Message{Head: []byte("last")})) }} {
			sent = sent[:0]
			for _, n := range []int{1, 64, 3000, 20_000} {
				if !send(p.ab.TrySendDeferred, n) {
					break // there are few slots
				}
			}
			require.NotEmpty(t, sent)
			rings()
			for i, data := range sent {
				p.b.expect(p.ba, fmt.Sprint(i), data)
			}
			p.b.send(p.ba, "back", 10)
			get(t, p.a.messages)
		}
		get(t, p.b.messages) // the last
		require.NoError(t, p.ab.Close())
		p.ab.Doorbell() // as a send that raced with the end does
		ok, err := p.ab.TrySendDeferred(Message{Head: []byte("x")})
		require.False(t, ok)
		require.Error(t, err)
	})
}
