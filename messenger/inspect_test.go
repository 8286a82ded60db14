package messenger

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// An Inspection tells what both ends of a session agree on, what memory is granted
// and held, and by which transport; and no secret.
func TestInspect(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		kept := make(chan *Message, 1)
		p := newPairOf(t, scheme, StatefulServer(), LosslessClient(), &handler{dispatch: func(_ context.Context, m *Message) bool {
			kept <- m
			return true
		}})
		m := NewMessage(42)
		m.Data, _ = randomList(t, p.client.cfg.Arena, 100_000)
		require.NoError(t, p.c.Send(soon(t), m))
		held := receiveOne(t, kept, "message")
		defer held.Release()
		sc := held.Conn
		list := func(n int) *buffer.List {
			b, err := p.server.cfg.Arena.Get(soon(t), n, p.server.cfg.Arena.Owner("the test's", 0))
			require.NoError(t, err)
			return buffer.NewList(b)
		}
		a, b := list(3000), list(2000)
		defer a.Release()
		defer b.Release()
		read, err := sc.Grant(soon(t), a, false)
		require.NoError(t, err)
		write, err := sc.Grant(soon(t), b, true)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return p.c.Stats().UnackedMessages == 0 }, patience, time.Millisecond)

		here, there := p.client.Inspect(InspectQuery{}), p.server.Inspect(InspectQuery{})
		require.Equal(t, "osd.0", there.Name)
		require.Len(t, here.Connections, 1)
		require.Len(t, there.Connections, 1)
		c, s := here.Connections[0], there.Connections[0]
		require.Equal(t, p.c.ID(), c.ID)
		require.Equal(t, sc.ID(), s.ID)
		require.Equal(t, "osd.0", c.Peer)
		require.Equal(t, [2]string{"lossless_client", "stateful_server"}, [2]string{c.Policy, s.Policy})
		require.Equal(t, [2]string{"open", "open"}, [2]string{c.State, s.State})
		require.Contains(t, c.Dial, p.server.Addrs()[0].String())

		// The session.
		require.Len(t, c.Session.ClientCookie, 8)
		require.Len(t, c.Session.ServerCookie, 8)
		require.NotEqual(t, c.Session.ClientCookie, c.Session.ServerCookie)
		require.Equal(t, c.Session.ClientCookie, s.Session.ClientCookie)
		require.Equal(t, c.Session.ServerCookie, s.Session.ServerCookie)
		require.Equal(t, c.Session.ConnectSeq, s.Session.ConnectSeq)
		require.Positive(t, c.Session.GlobalSeq)
		require.Equal(t, c.Session.GlobalSeq, s.Session.PeerGlobalSeq)
		require.EqualValues(t, 1, c.Session.Acked)
		require.EqualValues(t, 1, s.Session.AckSent)
		require.EqualValues(t, 1, s.Stats.InSeq)

		// The transport.
		for _, i := range []ConnInspection{c, s} {
			require.Equal(t, scheme, i.Transport.Scheme)
			require.Equal(t, p.c.Mode().String(), i.Transport.Mode)
			require.WithinDuration(t, time.Now(), i.Transport.Since, patience)
			require.False(t, i.Transport.Holding)
			if scheme == SchemeTCP {
				require.Nil(t, i.Transport.Conn)
				require.Zero(t, i.Link)
				continue
			}
			require.Equal(t, i.Link, i.Transport.Conn.ID)
			require.NotZero(t, i.Link)
			require.Positive(t, i.Transport.Conn.Credits)
			require.GreaterOrEqual(t, i.Transport.Conn.CreditsMost, i.Transport.Conn.Credits)
			require.Positive(t, i.Transport.Conn.Stats.MessagesSent)
		}
		require.False(t, c.Transport.Incoming)
		require.True(t, s.Transport.Incoming)
		require.Len(t, there.Endpoints, 1)
		require.Equal(t, schemeDevice, there.Endpoints[0].Scheme)
		require.Equal(t, scheme != SchemeTCP, there.Endpoints[0].Stats.Conns == 1)

		// Memory.
		require.Zero(t, c.Grants)
		require.Equal(t, 2, s.Grants.Out)
		require.Equal(t, 2, s.Stats.Grants)
		require.EqualValues(t, 5000, s.Grants.OutBytes)
		for i := range s.Grants.Live {
			s.Grants.Live[i].Framed = false // as the device has it
		}
		require.ElementsMatch(t, []GrantInspection{{Owner: "the test's", Bytes: 3000}, {Owner: "the test's", Bytes: 2000, Write: true}}, s.Grants.Live)
		require.Len(t, there.Held, 1)
		require.EqualValues(t, 100_000, there.Held[0].Data)
		require.Equal(t, there.Memory.Total, there.Memory.Posted+there.Memory.Held+there.Memory.Free)
		granted, inMessage := 0, uint64(0)
		for _, h := range there.Memory.Oldest {
			if strings.Contains(h.What, "message of type 42 from client") {
				inMessage += h.Bytes
			}
			if h.Owner == "the test's" {
				granted++
			}
		}
		require.Equal(t, 2, granted)
		require.GreaterOrEqual(t, inMessage, uint64(100_000))
		for _, o := range there.Memory.Owners {
			if o.Name == "the test's" {
				require.Equal(t, 2, o.Buffers)
			}
		}

		// Policies and throttles.
		require.Equal(t, []string{"client", "others who connect", "others"}, []string{there.Policies[0].Peers, there.Policies[1].Peers, there.Policies[2].Peers})
		require.Equal(t, []string{"stateful_server", "stateless_server", "lossy_client"}, []string{there.Policies[0].Policy, there.Policies[1].Policy, there.Policies[2].Policy})
		require.Len(t, there.Throttles, 1)
		require.Equal(t, "all", there.Throttles[0].Peers)
		require.EqualValues(t, 100_000+messageOverhead, there.Throttles[0].Taken)
		require.EqualValues(t, defaultDispatchBytes, there.Throttles[0].Max)

		// As it travels.
		text, err := json.Marshal(there)
		require.NoError(t, err)
		var back Inspection
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, s.Session, back.Connections[0].Session)
		p.c.mu.Lock()
		secrets := []uint64{p.c.session.ClientCookie, p.c.session.ServerCookie, read[0].Addr, write[0].Addr}
		p.c.mu.Unlock()
		if scheme != SchemeTCP && !read[0].Framed {
			secrets = append(secrets, uint64(read[0].RKey), uint64(write[0].RKey))
		}
		for _, x := range secrets {
			require.NotContains(t, string(text), fmt.Sprint(x))
			require.NotContains(t, string(text), fmt.Sprintf("%x", x))
		}
	})
}

// Throttles that are full show what waits for them.
func TestInspectThrottles(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		kept := make(chan *Message, 2)
		narrow := StatefulServer()
		narrow.MaxMessages, narrow.MaxBytes = 1, 1<<20
		p := newPairOf(t, scheme, narrow, LosslessClient(), &handler{dispatch: func(_ context.Context, m *Message) bool {
			kept <- m
			return true
		}})
		for range 2 {
			m := NewMessage(1)
			m.Front = append(m.Front, make([]byte, 200)...)
			require.NoError(t, p.c.Send(soon(t), m))
		}
		first := receiveOne(t, kept, "message")
		var got []ThrottleInspection
		require.Eventually(t, func() bool {
			got = p.server.Inspect(InspectQuery{}).Throttles
			return len(got) == 3 && got[1].Waiting == 1 && got[1].Longest > 0
		}, patience, time.Millisecond)
		got[1].Longest = 0
		require.Equal(t, []ThrottleInspection{
			{Peers: "client", Of: "bytes", Max: 1 << 20, Taken: 200},
			{Peers: "client", Of: "messages", Max: 1, Taken: 1, Waiting: 1},
			{Peers: "all", Of: "bytes", Max: defaultDispatchBytes, Taken: 200 + messageOverhead},
		}, got)
		s := p.server.Inspect(InspectQuery{}).Connections[0]
		require.True(t, s.Transport.Holding)
		first.Release()
		receiveOne(t, kept, "message").Release()
		require.Eventually(t, func() bool {
			in := p.server.Inspect(InspectQuery{})
			return in.Throttles[1].Waiting == 0 && in.Throttles[1].Taken == 0 && !in.Connections[0].Transport.Holding
		}, patience, time.Millisecond)
	})
}
