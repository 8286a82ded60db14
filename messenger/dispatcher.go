package messenger

import "context"

// Dispatcher handles what a Messenger receives. Several form a chain, see
// AddDispatcher and AddDispatcherFront; the first that consumes a message ends it.
//
// Events of one connection come one at a time and in order, HandleConnect or
// HandleAccept first and, where the session is lossy, HandleReset last, all from
// the same strand as Dispatch. A lossless session has one of the first two each
// time that it gets a transport, and HandleRemoteReset in between. Events of
// different connections are concurrent. The exception is FastDispatch.
type Dispatcher interface {
	// Dispatch handles a message, and may block: then later messages of this
	// connection wait, and one of Config.Workers is taken. true: consumed, the
	// reference to m is now the handler's, who calls m.Release when done, here
	// or later. false: not for this dispatcher, which keeps nothing of m. A panic
	// ends the connection; the caller of a call learns of it (ErrHandlerPanic).
	//
	// ctx ends with the deadline that the caller set with Call, with its
	// cancelling, with the connection, or when m is released.
	Dispatch(ctx context.Context, m *Message) bool
	// FastDispatch is asked first. It runs on the goroutine that reads the
	// transport, ahead of messages that still wait for Dispatch, and must not
	// block. Results as Dispatch; false leaves m to Dispatch. A call that it keeps
	// to answer later is waited for by Drain and Shutdown as any other, and has a
	// context, see Message.Context.
	FastDispatch(m *Message) bool
	// HandleConnect: a connection is ready, by a transport that we opened: the
	// first one, or, where the session is lossless, a later one.
	HandleConnect(c *Connection)
	// HandleAccept: likewise, by a transport that the peer opened.
	HandleAccept(c *Connection)
	// HandleReset: a lossy connection ended, by a fault (c.Err says which), or a
	// lossless one, by Config.SessionTimeout. Not called after our own MarkDown.
	HandleReset(c *Connection)
	// HandleRemoteReset: the peer has lost the session, or dropped it; it goes on
	// as a new one, without what was queued or not acknowledged, and calls under
	// way have failed with ErrReset. What had been received before is dispatched
	// before this. Lossless sessions only, where the policy has ResetCheck.
	HandleRemoteReset(c *Connection)
	// HandleRefused: nobody listens at the peer's address. The connection goes
	// on trying unless it is marked down.
	HandleRefused(c *Connection)
}

// FastHandler is what a Dispatcher may have too (Ceph: ms_handle_fast_connect and
// ms_handle_fast_accept): it is told of a transport before any FastDispatch of a
// message that comes by it, and before HandleConnect or HandleAccept. Its methods
// run on the goroutine that reads the transport, with no FastDispatch of the
// connection at the same time, and must not block. A panic ends the connection.
type FastHandler interface {
	// FastHandleConnect: as HandleConnect.
	FastHandleConnect(c *Connection)
	// FastHandleAccept: as HandleAccept.
	FastHandleAccept(c *Connection)
}

// BaseDispatcher consumes nothing and ignores every event. Embed it to write a
// Dispatcher with only the methods that matter.
type BaseDispatcher struct{}

var _ Dispatcher = BaseDispatcher{}

// Dispatch implements Dispatcher.
func (BaseDispatcher) Dispatch(context.Context, *Message) bool { return false }

// FastDispatch implements Dispatcher.
func (BaseDispatcher) FastDispatch(*Message) bool { return false }

// HandleConnect implements Dispatcher.
func (BaseDispatcher) HandleConnect(*Connection) {}

// HandleAccept implements Dispatcher.
func (BaseDispatcher) HandleAccept(*Connection) {}

// HandleReset implements Dispatcher.
func (BaseDispatcher) HandleReset(*Connection) {}

// HandleRemoteReset implements Dispatcher.
func (BaseDispatcher) HandleRemoteReset(*Connection) {}

// HandleRefused implements Dispatcher.
func (BaseDispatcher) HandleRefused(*Connection) {}
