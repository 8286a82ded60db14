package conn_test

import (
	"context"
	"fmt"
	"log"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// Two endpoints on a device in software: one sends a message whose payload the
// other gets in a registered buffer, without a copy.
func Example() {
	ctx := context.Background()
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	arena, err := buffer.New(buffer.Config{Budget: 32 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer arena.Close(ctx)

	got := make(chan struct{})
	server, err := conn.NewEndpoint(dev, arena, conn.Config{
		OnMessage: func(c *conn.Conn, m conn.Message) {
			fmt.Printf("%s: %d bytes\n", m.Head, m.Payload.Len())
			m.Payload.Release()
			close(got)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if err := server.Listen(ctx, "127.0.0.1:0"); err != nil {
		log.Fatal(err)
	}

	client, err := conn.NewEndpoint(dev, arena, conn.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Shutdown(ctx)
	c, err := client.Dial(ctx, server.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	payload, err := arena.GetList(ctx, 50_000, buffer.Anonymous)
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Send(ctx, conn.Message{Head: []byte("hello"), Payload: payload}); err != nil {
		payload.Release()
		log.Fatal(err)
	}
	<-got
	// Output: hello: 50000 bytes
}
