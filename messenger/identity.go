package messenger

// authenticated is what authentication has said of a peer besides its name.
type authenticated struct {
	globalID uint64
	identity any
}

func (a *authenticated) id() uint64 {
	if a == nil {
		return 0
	}
	return a.globalID
}

// GlobalID is the number that the server has given the client when the session
// began, on both sides: that of the peer where it has connected to us, else ours
// (Ceph: peer_global_id). 0 before the peer has agreed to a session, and of the Loopback.
func (c *Connection) GlobalID() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.auth.id()
}

// Identity is what the method of authentication knows of the peer, see
// AuthResult.Identity; as of the last transport. nil: nothing, or no session yet.
func (c *Connection) Identity() any {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.auth == nil {
		return nil
	}
	return c.auth.identity
}
