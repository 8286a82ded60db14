package wire

import (
	"encoding/binary"

	"github.com/argonaut-rdma/argonaut/messenger"
)

// Message types of the messenger. They are far from Ceph's own.
const (
	TypePut       uint16 = 0x7a01 + iota // PutRequest; PutReply
	TypePutWindow                        // PutWindow; Reply
	TypePutCommit                        // PutCommit; InfoReply
	TypeGet                              // GetRequest; GetReply
	TypeGetWindow                        // GetWindow; GetWindowReply
	TypeEnd                              // EndRequest; Reply
	TypeStat                             // KeyRequest; InfoReply
	TypeRemove                           // KeyRequest; Reply
	TypeList                             // ListRequest; ListReply
	TypeNode                             // NodeRequest; NodeReply
	TypeReply                            // every answer
)

// Info describes an object.
type Info struct {
	Key      string
	Size     int64 // bytes; -1: the node's record of it is damaged
	Modified int64 // nanoseconds since 1970, by the node's clock
	Version  string
}

// PutRequest begins a PUT. Size is -1 where it is not known beforehand. With Eager the whole object is in the message's
// data, with its checksums in Sums; else it comes in windows.
type PutRequest struct {
	Key   string
	Size  int64
	Eager bool
	Sums  []uint32
}

// Append encodes m.
func (m *PutRequest) Append(b []byte) []byte {
	b = append(b, Version, boolByte(m.Eager))
	b = appendStr(b, m.Key, maxKey)
	b = appendI64(b, m.Size)
	return appendSums(b, m.Sums)
}

// Decode fills m from p.
func (m *PutRequest) Decode(p []byte) error {
	d := decoder{b: p}
	d.header()
	m.Eager = d.flag()
	m.Key = d.str("key", maxKey)
	m.Size = d.size("size", -1)
	m.Sums = d.sums()
	return d.end()
}

// PutReply answers a PutRequest: Info where it was eager, else Transfer, which names the transfer from now on.
type PutReply struct {
	Transfer uint64
	Terms    Terms
	Info     Info
}

// Append encodes m behind an ok status.
func (m *PutReply) Append(b []byte) []byte {
	b = appendOK(b)
	b = binary.LittleEndian.AppendUint64(b, m.Transfer)
	b = m.Terms.append(b)
	return m.Info.append(b)
}

// Decode fills m from p.
func (m *PutReply) Decode(p []byte) error {
	d := decoder{b: p}
	d.ok()
	m.Transfer = d.u64()
	m.Terms = d.terms()
	m.Info = d.info()
	return d.end()
}

// Terms are what the node asks of the windows of a transfer. A window begins and ends on a multiple of Chunk, the unit of
// checking, or with what is transferred; a checksum covers what lies between two of these multiples. It has at most Window
// bytes, counted from the multiple before it to the one behind it. At most Windows may be under way.
type Terms struct {
	Chunk   uint32
	Window  uint32
	Windows uint8
}

func (t Terms) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, t.Chunk)
	b = binary.LittleEndian.AppendUint32(b, t.Window)
	return append(b, t.Windows)
}

func (d *decoder) terms() Terms {
	t := Terms{Chunk: d.u32(), Window: d.u32(), Windows: d.u8()}
	if d.err == nil && (t.Chunk < 512 || t.Chunk&(t.Chunk-1) != 0 || t.Window < t.Chunk || t.Window > MaxWindow ||
		t.Windows == 0 || t.Windows > MaxWindows) {
		d.fail("terms %+v", t)
	}
	return t
}

// PutWindow says that the node can read Length bytes of the object, from Offset on, through Grants, and what their
// checksums are. The client changes nothing of them before the answer.
type PutWindow struct {
	Transfer uint64
	Offset   int64
	Length   uint32
	Sums     []uint32
	Grants   []messenger.Grant
}

// Append encodes m.
func (m *PutWindow) Append(b []byte) []byte {
	b = append(b, Version)
	b = binary.LittleEndian.AppendUint64(b, m.Transfer)
	b = appendI64(b, m.Offset)
	b = binary.LittleEndian.AppendUint32(b, m.Length)
	b = appendSums(b, m.Sums)
	return messenger.AppendGrants(b, m.Grants)
}

// Decode fills m from p.
func (m *PutWindow) Decode(p []byte) error {
	d := decoder{b: p}
	d.header()
	m.Transfer = d.u64()
	m.Offset = d.size("offset", 0)
	m.Length = d.window()
	m.Sums = d.sums()
	m.Grants = d.windowGrants(m.Length)
	return d.end()
}

// PutCommit ends a PUT of Size bytes: the node answers when they are on its disk.
type PutCommit struct {
	Transfer uint64
	Size     int64
}

// Append encodes m.
func (m *PutCommit) Append(b []byte) []byte {
	b = append(b, Version)
	b = binary.LittleEndian.AppendUint64(b, m.Transfer)
	return appendI64(b, m.Size)
}

// Decode fills m from p.
func (m *PutCommit) Decode(p []byte) error {
	d := decoder{b: p}
	d.header()
	m.Transfer = d.u64()
	m.Size = d.size("size", 0)
	return d.end()
}

// GetRequest begins a GET of Length bytes from Offset on; Length -1 is to the end.
type GetRequest struct {
	Key    string
	Offset int64
	Length int64
}

// Append encodes m.
func (m *GetRequest) Append(b []byte) []byte {
	b = append(b, Version)
	b = appendStr(b, m.Key, maxKey)
	b = appendI64(b, m.Offset)
	return appendI64(b, m.Length)
}

// Decode fills m from p.
func (m *GetRequest) Decode(p []byte) error {
	d := decoder{b: p}
	d.header()
	m.Key = d.str("key", maxKey)
	m.Offset = d.size("offset", 0)
	m.Length = d.size("length", -1)
	return d.end()
}

// GetReply answers a GetRequest: the bytes from Offset to Offset+Length will come. With Eager they are the message's
// data, with their checksums in Sums; else Transfer names the transfer.
type GetReply struct {
	Transfer uint64
	Terms    Terms
	Offset   int64
	Length   int64
	Eager    bool
	Sums     []uint32
	Info     Info
}

// Append encodes m behind an ok status.
func (m *GetReply) Append(b []byte) []byte {
	b = appendOK(b)
	b = append(b, boolByte(m.Eager))
	b = binary.LittleEndian.AppendUint64(b, m.Transfer)
	b = m.Terms.append(b)
	b = appendI64(b, m.Offset)
	b = appendI64(b, m.Length)
	b = appendSums(b, m.Sums)
	return m.Info.append(b)
}

// Decode fills m from p.
func (m *GetReply) Decode(p []byte) error {
	d := decoder{b: p}
	d.ok()
	m.Eager = d.flag()
	m.Transfer = d.u64()
	m.Terms = d.terms()
	m.Offset = d.size("offset", 0)
	m.Length = d.size("length", 0)
	m.Sums = d.sums()
	m.Info = d.info()
	if d.err == nil && (m.Info.Size < 0 || m.Offset > m.Info.Size || m.Length > m.Info.Size-m.Offset) {
		d.fail("%d bytes at %d of an object of %d", m.Length, m.Offset, m.Info.Size)
	}
	return d.end()
}

// GetWindow asks the node to write Length bytes of the object, from Offset on, through Grants.
type GetWindow struct {
	Transfer uint64
	Offset   int64
	Length   uint32
	Grants   []messenger.Grant
}

// Append encodes m.
func (m *GetWindow) Append(b []byte) []byte {
	b = append(b, Version)
	b = binary.LittleEndian.AppendUint64(b, m.Transfer)
	b = appendI64(b, m.Offset)
	b = binary.LittleEndian.AppendUint32(b, m.Length)
	return messenger.AppendGrants(b, m.Grants)
}

// Decode fills m from p.
func (m *GetWindow) Decode(p []byte) error {
	d := decoder{b: p}
	d.header()
	m.Transfer = d.u64()
	m.Offset = d.size("offset", 0)
	m.Length = d.window()
	m.Grants = d.windowGrants(m.Length)
	return d.end()
}

// GetWindowReply says that the window has been written, and gives the checksums of its pieces.
type GetWindowReply struct{ Sums []uint32 }

// Append encodes m behind an ok status.
func (m *GetWindowReply) Append(b []byte) []byte { return appendSums(appendOK(b), m.Sums) }

// Decode fills m from p.
func (m *GetWindowReply) Decode(p []byte) error {
	d := decoder{b: p}
	d.ok()
	m.Sums = d.sums()
	return d.end()
}

// EndRequest ends a transfer: a PUT that was not committed leaves nothing.
type EndRequest struct{ Transfer uint64 }

// Append encodes m.
func (m *EndRequest) Append(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(append(b, Version), m.Transfer)
}

// Decode fills m from p.
func (m *EndRequest) Decode(p []byte) error {
	d := decoder{b: p}
	d.header()
	m.Transfer = d.u64()
	return d.end()
}

// KeyRequest asks about one object, or for its removal.
type KeyRequest struct{ Key string }

// Append encodes m.
func (m *KeyRequest) Append(b []byte) []byte { return appendStr(append(b, Version), m.Key, maxKey) }

// Decode fills m from p.
func (m *KeyRequest) Decode(p []byte) error {
	d := decoder{b: p}
	d.header()
	m.Key = d.str("key", maxKey)
	return d.end()
}

// ListRequest asks for objects whose keys start with Prefix and come after After.
type ListRequest struct{ Prefix, After string }

// Append encodes m.
func (m *ListRequest) Append(b []byte) []byte {
	return appendStr(appendStr(append(b, Version), m.Prefix, maxKey), m.After, maxKey)
}

// Decode fills m from p.
func (m *ListRequest) Decode(p []byte) error {
	d := decoder{b: p}
	d.header()
	m.Prefix = d.str("prefix", maxKey)
	m.After = d.str("key", maxKey)
	return d.end()
}

// ListReply has objects in the order of their keys; More: there are others behind them.
type ListReply struct {
	Infos []Info
	More  bool
}

// Append encodes m behind an ok status.
func (m *ListReply) Append(b []byte) []byte {
	b = append(appendOK(b), boolByte(m.More))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(m.Infos)))
	for _, i := range m.Infos {
		b = i.append(b)
	}
	return b
}

// Decode fills m from p.
func (m *ListReply) Decode(p []byte) error {
	d := decoder{b: p}
	d.ok()
	m.More = d.flag()
	n := int(d.u16())
	if n > MaxList {
		d.fail("%d objects, at most %d", n, MaxList)
	}
	m.Infos = nil
	for i := 0; i < n && d.err == nil; i++ {
		m.Infos = append(m.Infos, d.info())
	}
	return d.end()
}

// InfoReply answers a KeyRequest or a PutCommit.
type InfoReply struct{ Info Info }

// Append encodes m behind an ok status.
func (m *InfoReply) Append(b []byte) []byte { return m.Info.append(appendOK(b)) }

// Decode fills m from p.
func (m *InfoReply) Decode(p []byte) error {
	d := decoder{b: p}
	d.ok()
	m.Info = d.info()
	return d.end()
}

// NodeReply is the state of the node. The account is the arena's, in bytes. QueuePairs counts those that the device has,
// the one that carries this reply included.
type NodeReply struct {
	Posted, Held, Free, Total int64
	QueuePairs                uint32
	Connections               uint32
	Transfers                 uint32
	Objects, Bytes            int64
	Uptime                    int64 // nanoseconds
	Device                    string
}

// Append encodes m behind an ok status.
func (m *NodeReply) Append(b []byte) []byte {
	b = appendOK(b)
	for _, n := range []int64{m.Posted, m.Held, m.Free, m.Total} {
		b = appendI64(b, n)
	}
	for _, n := range []uint32{m.QueuePairs, m.Connections, m.Transfers} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	for _, n := range []int64{m.Objects, m.Bytes, m.Uptime} {
		b = appendI64(b, n)
	}
	return appendStr(b, m.Device, 64)
}

// Decode fills m from p.
func (m *NodeReply) Decode(p []byte) error {
	d := decoder{b: p}
	d.ok()
	for _, n := range []*int64{&m.Posted, &m.Held, &m.Free, &m.Total} {
		*n = d.i64()
	}
	for _, n := range []*uint32{&m.QueuePairs, &m.Connections, &m.Transfers} {
		*n = d.u32()
	}
	for _, n := range []*int64{&m.Objects, &m.Bytes, &m.Uptime} {
		*n = d.i64()
	}
	m.Device = d.str("device", 64)
	return d.end()
}

// NodeRequest asks for a NodeReply.
type NodeRequest struct{}

// Append encodes m.
func (*NodeRequest) Append(b []byte) []byte { return append(b, Version) }

// Decode checks p.
func (*NodeRequest) Decode(p []byte) error {
	d := decoder{b: p}
	d.header()
	return d.end()
}

// AppendReply encodes an answer without a body: ok, or a failure in words that a user can read.
func AppendReply(b []byte, s Status, message string) []byte {
	b = append(b, Version)
	b = binary.LittleEndian.AppendUint16(b, uint16(s))
	return appendStr(b, message, maxMessage)
}

// DecodeReply decodes the status and the words that every answer starts with. Where the status is not StatusOK nothing
// follows.
func DecodeReply(p []byte) (Status, string, error) {
	d := decoder{b: p}
	d.header()
	s := Status(d.u16())
	message := d.str("message", maxMessage)
	if s != StatusOK && d.err == nil {
		return s, message, d.end()
	}
	return s, message, d.err
}

func appendOK(b []byte) []byte { return AppendReply(b, StatusOK, "") }

// ok reads the head of an answer that has a body.
func (d *decoder) ok() {
	d.header()
	if s := d.u16(); s != uint16(StatusOK) {
		d.fail("status %d", s)
	}
	d.str("message", maxMessage)
}

func (d *decoder) flag() bool {
	v := d.u8()
	if v > 1 {
		d.fail("flag %d", v)
	}
	return v == 1
}

// window is the length of a window.
func (d *decoder) window() uint32 {
	n := d.u32()
	if d.err == nil && (n == 0 || n > MaxWindow) {
		d.fail("window of %d bytes", n)
	}
	return n
}

// windowGrants reads grants that must cover n bytes.
func (d *decoder) windowGrants(n uint32) []messenger.Grant {
	gs := d.grants()
	if d.err == nil && messenger.GrantsLen(gs) < uint64(n) {
		d.fail("grants of %d bytes for a window of %d", messenger.GrantsLen(gs), n)
	}
	return gs
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}
