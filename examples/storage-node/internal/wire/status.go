package wire

import "fmt"

// Status is the outcome of a request. It is an error, for errors.Is.
type Status uint16

// The statuses. The numbers are the protocol's.
const (
	StatusOK           Status = 0
	StatusNotFound     Status = 1  // no object has this key
	StatusBadKey       Status = 2  // the key can not name an object
	StatusNoSpace      Status = 3  // the node's disk is full
	StatusDamaged      Status = 4  // the object on the node's disk is not what was stored
	StatusUnreadable   Status = 5  // the node's system refuses to read the object
	StatusChecksum     Status = 6  // data arrived at the node with another checksum than it was sent with
	StatusSize         Status = 7  // more or fewer bytes than were announced
	StatusRange        Status = 8  // a range outside the object
	StatusBadRequest   Status = 9  // the node does not understand the request
	StatusVersion      Status = 10 // the node speaks another version of the protocol
	StatusBusy         Status = 11 // the node has no room for another transfer now
	StatusNoTransfer   Status = 12 // the transfer is unknown, or was ended: idle for too long, or an error before
	StatusShuttingDown Status = 13 // the node is going away
	StatusTimeout      Status = 14 // the node gave up waiting, for memory or for the client
	StatusInternal     Status = 15 // anything else, in the node's words
)

var statusText = map[Status]string{
	StatusOK:           "ok",
	StatusNotFound:     "no such object",
	StatusBadKey:       "invalid key",
	StatusNoSpace:      "no space left on the node: remove objects or give the node a larger disk",
	StatusDamaged:      "the object is damaged on the node's disk: store it again",
	StatusUnreadable:   "the node can not read the object from its disk",
	StatusChecksum:     "data was damaged on its way to the node",
	StatusSize:         "wrong number of bytes",
	StatusRange:        "range outside the object",
	StatusBadRequest:   "bad request",
	StatusVersion:      "the node speaks another version of the object protocol",
	StatusBusy:         "the node has too many transfers: try again later",
	StatusNoTransfer:   "no such transfer",
	StatusShuttingDown: "the node is shutting down",
	StatusTimeout:      "the node timed out",
	StatusInternal:     "internal error of the node",
}

func (s Status) Error() string {
	if t, ok := statusText[s]; ok {
		return t
	}
	return fmt.Sprintf("status %d", uint16(s))
}
