package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// A blob file is a sequence of groups. A group is up to groupChunks chunks of data, padded to a whole page, and one
// table page with their checksums:
//
//	chunk 0 | chunk 1 | ... | chunk 1007 | table page | chunk 1008 | ...
//
// Everything lies on page boundaries, so page-aligned buffers move without a detour where the kernel can do it.
//
// Table page (little endian):
//
//	 0  magic "ARGOCRC1"
//	 8  blob id, 16 bytes: a page of another blob is refused
//	24  number of the group, 8 bytes
//	32  number of checksums, 4 bytes
//	36  zero
//	60  CRC32C of the page with this field zero
//	64  checksums, 4 bytes each
const (
	// ChunkSize is the unit of checking: the bytes that one CRC32C covers. Only the last chunk of an object is shorter.
	ChunkSize = 64 << 10

	pageSize     = 4096
	tableHeader  = 64
	groupChunks  = (pageSize - tableHeader) / 4
	groupData    = groupChunks * ChunkSize
	groupSpan    = groupData + pageSize
	tableMagic   = "ARGOCRC1"
	tableSumAt   = 60
	tableCountAt = 32
	tableGroupAt = 24
	tableIDAt    = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the CRC32C (Castagnoli) that the store keeps for each chunk.
func Checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// UpdateChecksum continues a Checksum over more bytes.
func UpdateChecksum(sum uint32, p []byte) uint32 { return crc32.Update(sum, castagnoli, p) }

// Chunks is how many chunks n bytes take.
func Chunks(n int64) int64 { return (n + ChunkSize - 1) / ChunkSize }

// blobID names a blob file; it is random and never used twice.
type blobID [16]byte

func (id blobID) String() string { return fmt.Sprintf("%x", id[:]) }

// fileOffset is where the byte off of the object lies in the blob file.
func fileOffset(off int64) int64 { return off/groupData*groupSpan + off%groupData }

// tableOffset is where the table page of a group with n bytes of data lies in the blob file.
func tableOffset(group, n int64) int64 {
	return group*groupSpan + (n+pageSize-1)/pageSize*pageSize
}

// fileSize is the length of the blob file of an object of n bytes.
func fileSize(n int64) int64 {
	if n == 0 {
		return 0
	}
	group := (n - 1) / groupData
	return tableOffset(group, n-group*groupData) + pageSize
}

// table is one table page. Its zero value holds no checksums.
type table struct {
	page  [pageSize]byte
	count int
}

func (t *table) set(i int, sum uint32) {
	binary.LittleEndian.PutUint32(t.page[tableHeader+4*i:], sum)
}

func (t *table) sum(i int) uint32 { return binary.LittleEndian.Uint32(t.page[tableHeader+4*i:]) }

// seal fills in the header for group of blob id and returns the page to write.
func (t *table) seal(id blobID, group int64) []byte {
	p := t.page[:]
	clear(p[:tableHeader])
	copy(p, tableMagic)
	copy(p[tableIDAt:], id[:])
	binary.LittleEndian.PutUint64(p[tableGroupAt:], uint64(group))
	binary.LittleEndian.PutUint32(p[tableCountAt:], uint32(t.count))
	clear(p[tableHeader+4*t.count:])
	binary.LittleEndian.PutUint32(p[tableSumAt:], Checksum(p))
	return p
}

// check verifies a page that was read: it must be the one of this group of this blob, with count checksums.
func (t *table) check(id blobID, group int64, count int) error {
	p := t.page[:]
	want := binary.LittleEndian.Uint32(p[tableSumAt:])
	clear(p[tableSumAt : tableSumAt+4])
	switch {
	case string(p[:len(tableMagic)]) != tableMagic:
		return errors.New("checksum table has no magic")
	case Checksum(p) != want:
		return errors.New("checksum table does not match its own checksum")
	case blobID(p[tableIDAt:tableIDAt+16]) != id:
		return errors.New("checksum table belongs to another blob")
	case binary.LittleEndian.Uint64(p[tableGroupAt:]) != uint64(group):
		return errors.New("checksum table belongs to another part of the blob")
	case binary.LittleEndian.Uint32(p[tableCountAt:]) != uint32(count):
		return errors.New("checksum table has the wrong number of entries")
	}
	t.count = count
	return nil
}

// cursor walks over a list of slices as if they were one.
type cursor struct {
	segs [][]byte
	off  int // in segs[0]
}

// next returns the following bytes that lie together, at most max of them; nil at the end.
func (c *cursor) next(max int) []byte {
	for len(c.segs) > 0 && c.off == len(c.segs[0]) {
		c.segs, c.off = c.segs[1:], 0
	}
	if len(c.segs) == 0 {
		return nil
	}
	p := c.segs[0][c.off:]
	if len(p) > max {
		p = p[:max]
	}
	c.off += len(p)
	return p
}

func totalLen(segs [][]byte) int64 {
	var n int64
	for _, s := range segs {
		n += int64(len(s))
	}
	return n
}
