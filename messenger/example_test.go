package messenger_test

import (
	"context"
	"fmt"
	"log"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

const (
	typeRead  = 1
	typeFetch = 2
	typeReply = 3
)

// node answers requests.
type node struct {
	messenger.BaseDispatcher
	arena *buffer.Arena
}

func (n *node) Dispatch(ctx context.Context, m *messenger.Message) bool {
	defer m.Release() // also when this panics
	r := messenger.NewMessage(typeReply)
	switch m.Type {
	case typeRead:
		r.Front = append(r.Front, "you asked for "...)
		r.Front = append(r.Front, m.Front...)
	case typeFetch: // the client has granted what is to be fetched
		r.Front = append(r.Front, n.fetch(ctx, m)...)
	}
	if err := m.Reply(ctx, r); err != nil {
		r.Release() // on an error it is still ours
	}
	return true
}

func (n *node) fetch(ctx context.Context, m *messenger.Message) string {
	grants, _, err := messenger.DecodeGrants(nil, m.Front)
	if err != nil {
		return err.Error()
	}
	l, err := n.arena.GetList(ctx, int64(messenger.GrantsLen(grants)), buffer.Anonymous)
	if err != nil {
		return err.Error()
	}
	defer l.Release()
	if err := m.Conn.Pull(ctx, l, grants, 0); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("fetched %d bytes", l.Len())
}

// entity is a messenger over the user-space adapter, with an arena of its own.
type entity struct {
	*messenger.Messenger
	dev   *verbs.Device
	arena *buffer.Arena
}

func newEntity(name messenger.EntityName) entity {
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		log.Fatal(err)
	}
	arena, err := buffer.New(buffer.Config{Budget: 32 << 20})
	if err != nil {
		log.Fatal(err)
	}
	m, err := messenger.New(messenger.Config{
		Name:  name,
		Arena: arena,
		Transports: []messenger.Transport{{
			Scheme: messenger.SchemeIWARP,
			Open:   func(c conn.Config) (*conn.Endpoint, error) { return conn.NewEndpoint(dev, arena, c) },
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	return entity{m, dev, arena}
}

// close ends things in the order in which they depend on each other.
func (e entity) close(ctx context.Context) {
	for _, step := range []func() error{
		func() error { return e.Shutdown(ctx) },
		func() error { return e.arena.Close(ctx) },
		e.dev.Close,
	} {
		if err := step(); err != nil {
			log.Fatal(err)
		}
	}
}

// A server and a client that calls it.
func ExampleConnection_Call() {
	ctx := context.Background()
	server := newEntity(messenger.EntityName{Type: messenger.OSD, Num: 0})
	defer server.close(ctx)
	server.AddDispatcher(&node{arena: server.arena})
	if err := server.Bind(ctx, messenger.AddrVec{{URL: "iwarp://127.0.0.1:0"}}); err != nil {
		log.Fatal(err)
	}

	client := newEntity(messenger.EntityName{Type: messenger.Client, Num: -1})
	defer client.close(ctx)
	c, err := client.ConnectTo(messenger.OSD, server.Addrs())
	if err != nil {
		log.Fatal(err)
	}
	m := messenger.NewMessage(typeRead)
	m.Front = append(m.Front, "an object"...)
	r, err := c.Call(ctx, m)
	if err != nil {
		log.Fatal(err)
	}
	defer r.Release()
	fmt.Println(string(r.Front))
	// Output: you asked for an object
}

// A client grants memory, and the server fetches it one-sided.
func ExampleConnection_Grant() {
	ctx := context.Background()
	server := newEntity(messenger.EntityName{Type: messenger.OSD, Num: 0})
	defer server.close(ctx)
	server.AddDispatcher(&node{arena: server.arena})
	if err := server.Bind(ctx, messenger.AddrVec{{URL: "iwarp://127.0.0.1:0"}}); err != nil {
		log.Fatal(err)
	}

	client := newEntity(messenger.EntityName{Type: messenger.Client, Num: -1})
	defer client.close(ctx)
	c, err := client.ConnectTo(messenger.OSD, server.Addrs())
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Ready(ctx); err != nil { // a grant needs a transport
		log.Fatal(err)
	}
	l, err := client.arena.GetList(ctx, 3<<20, buffer.Anonymous)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Release()
	grants, err := c.Grant(ctx, l, false)
	if err != nil {
		log.Fatal(err)
	}
	m := messenger.NewMessage(typeFetch)
	m.Front = messenger.AppendGrants(m.Front, grants)
	r, err := c.Call(ctx, m)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(r.Front))
	r.Release()
	if err := c.Revoke(ctx, grants); err != nil {
		log.Fatal(err)
	}
	// Output: fetched 3145728 bytes
}
