package buffer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

func Example() {
	ctx := context.Background()
	a, err := buffer.New(buffer.Config{Budget: 64 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	b, err := a.Get(ctx, 5000, buffer.Anonymous)
	if err != nil {
		fmt.Println(err)
		return
	}
	copy(b.Bytes(), "hello")
	view := b.Slice(0, 5)
	fmt.Println(string(view.Bytes()), view.Len(), a.Account().Held)
	b.Release()
	fmt.Println(a.Account().Held, a.Close(ctx))
	// Output:
	// hello 5 8192
	// 0 <nil>
}

// A buffer is registered with its arena; posted work has a reference of its own.
func ExampleArena_Attach() {
	ctx := context.Background()
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	pd, _ := dev.AllocPD()
	cq, _ := dev.CreateCQ(verbs.CQConfig{Depth: 256})
	qp, _ := pd.CreateQP(verbs.QPConfig{SendCQ: cq})

	a, _ := buffer.New(buffer.Config{Budget: 64 << 20})
	if err := a.Attach(ctx, pd); err != nil {
		fmt.Println(err)
		return
	}
	b, _ := a.Get(ctx, 64<<10, buffer.Anonymous)
	b.RetainPosted()
	if _, err := qp.PostRecv([]verbs.RecvWR{{WRID: 1, SGEs: []verbs.SGE{b.SGE(pd)}}}); err != nil {
		b.ReleasePosted()
	}
	b.Release() // the device still has it
	fmt.Println("posted", a.Account().Posted)

	orphans, _ := qp.Close()
	for range orphans { // each is a request that will never complete
		b.ReleasePosted()
	}
	fmt.Println("posted", a.Account().Posted)
	fmt.Println(a.Detach(ctx, pd), a.Close(ctx), cq.Close(), pd.Close(), dev.Close())
	// Output:
	// posted 65536
	// posted 0
	// <nil> <nil> <nil> <nil> <nil>
}

// Payload goes from a file into registered memory without a copy, and out again.
func ExampleList_ReadFrom() {
	ctx := context.Background()
	a, _ := buffer.New(buffer.Config{Budget: 64 << 20})
	l, _ := a.GetList(ctx, 3<<20, buffer.Anonymous)
	n, err := l.ReadFrom(strings.NewReader("stored and fetched\n"))
	fmt.Println(n, err, l.Segments())
	l.Truncate(n)
	_, _ = l.WriteTo(os.Stdout)
	l.Release()
	fmt.Println(a.Close(ctx))
	// Output:
	// 19 <nil> 3
	// stored and fetched
	// <nil>
}

func ExampleList_Split() {
	ctx := context.Background()
	a, _ := buffer.New(buffer.Config{Budget: 64 << 20})
	var l buffer.List
	_ = l.AppendCopy(ctx, a, buffer.Anonymous, []byte("head and body"))
	body := l.Split(9)
	head, _ := io.ReadAll(&l)
	rest, _ := io.ReadAll(body)
	fmt.Printf("%q %q\n", head, rest)
	l.Release()
	body.Release()
	fmt.Println(a.Close(ctx))
	// Output:
	// "head and " "body"
	// <nil>
}

// An owner with a quota can not take everything.
func ExampleArena_Owner() {
	ctx := context.Background()
	a, _ := buffer.New(buffer.Config{Budget: 64 << 20, FailWhenFull: true})
	client := a.Owner("client.4123", 1<<20)
	b, _ := a.Get(ctx, 1<<20, client)
	_, err := a.Get(ctx, 1, client)
	fmt.Println(err)
	b.Release()
	fmt.Println(a.Close(ctx))
	// Output:
	// owner's quota exceeded: owner "client.4123" may hold 1048576 bytes and wants 4096 more: raise it with Arena.Owner, or release sooner
	// <nil>
}

// Close names who still holds what, and does not unmap it.
func ExampleArena_Close() {
	a, _ := buffer.New(buffer.Config{Budget: 64 << 20})
	b, _ := a.Get(context.Background(), 5000, a.Owner("osd.3", 0))
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // do not wait
	var leak *buffer.LeakError
	if errors.As(a.Close(ctx), &leak) {
		fmt.Println(len(leak.Holders), leak.Holders[0].Owner, leak.Holders[0].Len)
	}
	b.Release()
	fmt.Println(a.Close(ctx))
	// Output:
	// 1 osd.3 8192
	// <nil>
}
