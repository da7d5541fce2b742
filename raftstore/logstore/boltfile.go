package logstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// boltFileReader reads a file of bbolt without bbolt, which crashes the process at a damaged page:
// it maps the file into memory, follows its pointers, and looks for free pages in a goroutine that
// panics. So the structure is verified before bbolt opens the file.
//
//	file      = page*                      (the first two are meta pages, of which the newer valid one counts)
//	page      = id flags count overflow element* data
//	meta      = magic version page-size flags root-page sequence freelist pages txid checksum
type boltFileReader struct {
	path  string
	file  *os.File
	size  int64
	page  int64  // bytes of a page
	pages uint64 // pages in use: all others are beyond the end
	used  []bool // pages that were met
	visit func(at boltPlace, key, value []byte) error
}

// boltPlace is where something is in the file.
type boltPlace struct {
	Bucket string
	Page   uint64
	Offset int64
}

func (p boltPlace) String() string {
	return fmt.Sprintf("page %d (offset %d)", p.Page, p.Offset)
}

const (
	boltMagic    = 0xED0CDAED
	boltVersion  = 2
	boltPageHead = 16
	boltElement  = 16
	boltMeta     = 64
	boltNoFree   = ^uint64(0)

	boltBranch = 0x01
	boltLeaf   = 0x02
	boltFree   = 0x10

	boltIsBucket = 0x01
	boltDepth    = 64 // of a tree; more is a circle
)

type boltHead struct {
	pageSize              uint32
	root, freelist, pages uint64
	txid                  uint64
}

// readBolt verifies the structure of the file and calls visit with each key, which it gets with its
// place. With whole, both meta pages must be valid.
func readBolt(path string, whole bool, visit func(at boltPlace, key, value []byte) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	r := &boltFileReader{path: path, file: file, size: info.Size(), visit: visit}
	meta, err := r.meta(whole)
	if err != nil {
		return err
	}
	r.page, r.pages = int64(meta.pageSize), meta.pages
	if need := int64(r.pages) * r.page; r.pages > uint64(r.size) || need > r.size {
		return corrupt(path, fmt.Sprintf("offset %d", r.size),
			"the file ends here and should have %d pages of %d bytes", r.pages, r.page)
	}
	r.used = make([]bool, r.pages)
	if err := errors.Join(r.take(0, 0), r.take(1, 0)); err != nil {
		return err
	}
	if err := r.tree("", meta.root, nil, nil, 0); err != nil {
		return err
	}
	if meta.freelist == boltNoFree {
		return nil
	}
	return r.freelist(meta.freelist)
}

// meta returns the newer of the two meta pages that are valid, as bbolt does.
func (r *boltFileReader) meta(whole bool) (newest boltHead, err error) {
	found := 0
	for _, at := range []int64{0, 4096, 8192, 16384, 32768, 65536} {
		b := make([]byte, boltPageHead+boltMeta)
		if _, err := r.file.ReadAt(b, at); err != nil {
			break
		}
		m, ok := decodeBoltMeta(b)
		if !ok || at != 0 && at != int64(m.pageSize) {
			continue
		}
		if found++; found == 1 || m.txid > newest.txid {
			newest = m
		}
	}
	switch {
	case found == 0:
		return newest, corrupt(r.path, boltPlace{}.String(), "neither of the first two pages is valid")
	case found == 1 && whole:
		return newest, corrupt(r.path, boltPlace{}.String(), "one of the first two pages is not valid")
	}
	if newest.pageSize < 1024 || newest.pageSize > 65536 || newest.pageSize&(newest.pageSize-1) != 0 ||
		newest.pages < 3 {
		return newest,
			corrupt(r.path, boltPlace{Page: newest.txid % 2}.String(), "it tells of %d pages of %d bytes", newest.pages,
				newest.pageSize)
	}
	return newest, nil
}

// boltEnd returns where the pages end that are in use, or were.
func boltEnd(path string) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	meta, err := (&boltFileReader{path: path, file: file}).meta(false)
	return int64(meta.pages) * int64(meta.pageSize), err
}

func decodeBoltMeta(b []byte) (m boltHead, ok bool) {
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[boltPageHead+at:]) }
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(b[boltPageHead+at:]) }
	h := fnv.New64a()
	h.Write(b[boltPageHead : boltPageHead+boltMeta-8])
	m = boltHead{pageSize: u32(8), root: u64(16), freelist: u64(32), pages: u64(40), txid: u64(48)}
	return m, u32(0) == boltMagic && u32(4) == boltVersion && u64(56) == h.Sum64()
}

// take marks a page and its overflow pages as used.
func (r *boltFileReader) take(id uint64, overflow uint32) error {
	for i := id; i <= id+uint64(overflow); i++ {
		if i >= r.pages {
			return corrupt(r.path, r.at("", id, 0).String(), "it goes beyond the last page, %d", r.pages-1)
		}
		if r.used[i] {
			return corrupt(r.path, r.at("", id, 0).String(), "two parts of the file claim page %d", i)
		}
		r.used[i] = true
	}
	return nil
}

func (r *boltFileReader) at(bucket string, page uint64, within int64) boltPlace {
	return boltPlace{Bucket: bucket, Page: page, Offset: int64(page)*r.page + within}
}

// read returns a page with its overflow pages.
func (r *boltFileReader) read(id uint64) (page []byte, flags uint16, err error) {
	place := r.at("", id, 0).String()
	if id >= r.pages {
		return nil, 0, corrupt(r.path, place, "the last page is %d", r.pages-1)
	}
	var head [boltPageHead]byte
	if _, err := r.file.ReadAt(head[:], int64(id)*r.page); err != nil {
		return nil, 0, fmt.Errorf("read %s of %s: %w", place, r.path, err)
	}
	overflow := binary.LittleEndian.Uint32(head[12:])
	flags = binary.LittleEndian.Uint16(head[8:])
	if self := binary.LittleEndian.Uint64(head[:]); self != id {
		return nil, 0, corrupt(r.path, place, "it says that it is page %d", self)
	}
	if flags != boltBranch && flags != boltLeaf && flags != boltFree {
		return nil, 0, corrupt(r.path, place, "it is of an unknown type, %#x", flags)
	}
	if err := r.take(id, overflow); err != nil {
		return nil, 0, err
	}
	page = make([]byte, (int64(overflow)+1)*r.page)
	if _, err := r.file.ReadAt(page, int64(id)*r.page); err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, fmt.Errorf("read %s of %s: %w", place, r.path, err)
	}
	return page, flags, nil
}

// tree verifies the tree of a bucket below a page. All keys lie from least on and before most, when
// they are given.
func (r *boltFileReader) tree(bucket string, id uint64, least, most []byte, depth int) error {
	page, flags, err := r.read(id)
	if err != nil {
		return err
	}
	if depth > boltDepth || flags == boltFree {
		return corrupt(r.path, r.at(bucket, id, 0).String(), "it has no place in a tree")
	}
	return r.elements(bucket, id, page, flags == boltLeaf, least, most, depth)
}

func (r *boltFileReader) elements(
	bucket string, id uint64, page []byte, leaf bool, least, most []byte, depth int,
) error {
	count := int(binary.LittleEndian.Uint16(page[10:]))
	end := boltPageHead + count*boltElement // of the elements, and of the data so far
	if end > len(page) {
		return corrupt(r.path, r.at(bucket, id, 10).String(), "it claims %d elements", count)
	}
	keys := make([]boltItem, count)
	for i := range keys {
		at := boltPageHead + i*boltElement
		item, n, err := decodeBoltElement(page, at, leaf)
		if err != nil || item.from < end {
			return corrupt(r.path, r.at(bucket, id, int64(at)).String(),
				"its element %d points to another place than its own", i)
		}
		end = n
		item.place = r.at(bucket, id, int64(item.from))
		if i > 0 && bytes.Compare(keys[i-1].key, item.key) >= 0 ||
			least != nil && i == 0 && bytes.Compare(item.key, least) < 0 ||
			most != nil && bytes.Compare(item.key, most) >= 0 {
			return corrupt(r.path, item.place.String(), "its key %x is out of order", item.key)
		}
		keys[i] = item
	}
	if extra := len(page) - end; extra >= int(r.page) && len(page) > int(r.page) && id != 0 {
		return corrupt(r.path, r.at(bucket, id, 12).String(), "it claims more pages than it needs")
	}
	for i, item := range keys {
		next := most
		if i+1 < count {
			next = keys[i+1].key
		}
		if err := r.item(bucket, item, leaf, next, depth); err != nil {
			return err
		}
	}
	return nil
}

// boltItem is an element of a page.
type boltItem struct {
	place      boltPlace
	from       int // offset of its data in the page
	key, value []byte
	flags      uint32
	child      uint64
}

func decodeBoltElement(page []byte, at int, leaf bool) (item boltItem, end int, err error) {
	u32 := func(i int) int64 { return int64(binary.LittleEndian.Uint32(page[at+i:])) }
	pos, ksize, vsize := u32(0), u32(4), int64(0)
	if leaf {
		item.flags = binary.LittleEndian.Uint32(page[at:])
		pos, ksize, vsize = u32(4), u32(8), u32(12)
	} else {
		item.child = binary.LittleEndian.Uint64(page[at+8:])
	}
	from := int64(at) + pos
	if from+ksize+vsize > int64(len(page)) {
		return item, 0, io.ErrUnexpectedEOF
	}
	item.from = int(from)
	item.key = page[from : from+ksize]
	item.value = page[from+ksize : from+ksize+vsize]
	return item, int(from + ksize + vsize), nil
}

// item continues below an element, or shows it to the visitor.
func (r *boltFileReader) item(bucket string, item boltItem, leaf bool, next []byte, depth int) error {
	switch {
	case !leaf:
		return r.tree(bucket, item.child, item.key, next, depth+1)
	case item.flags == boltIsBucket && len(item.value) < 16:
		return corrupt(r.path, item.place.String(), "it is too short for a bucket")
	case item.flags == boltIsBucket:
		name := bucket + "/" + string(item.key)
		if root := binary.LittleEndian.Uint64(item.value); root != 0 {
			return r.tree(name, root, nil, nil, depth+1)
		}
		inline := item.value[16:]
		if len(inline) < boltPageHead || binary.LittleEndian.Uint16(inline[8:]) != boltLeaf {
			return corrupt(r.path, item.place.String(), "the page within it is none")
		}
		return r.inline(name, item, inline)
	case item.flags != 0:
		return corrupt(r.path, item.place.String(), "it has unknown flags, %#x", item.flags)
	}
	return r.visit(item.place, item.key, item.value)
}

// inline verifies a bucket that is small enough to be within the page of its parent.
func (r *boltFileReader) inline(bucket string, parent boltItem, page []byte) error {
	count := int(binary.LittleEndian.Uint16(page[10:]))
	end := boltPageHead + count*boltElement
	var last []byte
	for i := range count {
		if end > len(page) {
			break
		}
		item, n, err := decodeBoltElement(page, boltPageHead+i*boltElement, true)
		if err != nil || item.from < end || item.flags != 0 || i > 0 && bytes.Compare(last, item.key) >= 0 {
			return corrupt(r.path, parent.place.String(), "element %d of the page within it is wrong", i)
		}
		end, last = n, item.key
		at := parent.place
		at.Bucket = bucket
		if err := r.visit(at, item.key, item.value); err != nil {
			return err
		}
	}
	if end > len(page) {
		return corrupt(r.path, parent.place.String(), "the page within it claims %d elements", count)
	}
	return nil
}

// freelist verifies the list of free pages: none of them may be in use.
func (r *boltFileReader) freelist(id uint64) error {
	page, flags, err := r.read(id)
	if err != nil {
		return err
	}
	place := r.at("", id, 0).String()
	count, at := uint64(binary.LittleEndian.Uint16(page[10:])), boltPageHead
	if count == 0xFFFF {
		count, at = binary.LittleEndian.Uint64(page[at:]), at+8
	}
	if flags != boltFree || count > uint64(len(page)-at)/8 {
		return corrupt(r.path, place, "it is no list of %d free pages", count)
	}
	last := uint64(1)
	for i := range int(count) {
		free := binary.LittleEndian.Uint64(page[at+8*i:])
		if free <= last || free >= r.pages || r.used[free] {
			return corrupt(r.path, place, "it lists page %d as free, which is not", free)
		}
		last = free
	}
	return nil
}
