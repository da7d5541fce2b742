package images

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
)

// errNoArchive is returned by LooksLikeArchive.
var errNoArchive = errors.New(
	"it is no image archive: want the output of 'docker save' or an OCI layout, as a tar, plain or compressed with gzip or zstd")

// zstdMagic begins a stream of zstd.
var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// LooksLikeArchive returns an error if r does not begin as an archive of images. It reads at most
// the first entry: the runtime checks the rest.
func LooksLikeArchive(r io.Reader) error {
	head := bufio.NewReader(r)
	magic, _ := head.Peek(len(zstdMagic)) // a short file is none, which shows below
	var plain io.Reader = head
	switch {
	case bytes.Equal(magic, zstdMagic):
		return nil
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		unpacked, err := gzip.NewReader(head)
		if err != nil {
			return errNoArchive
		}
		plain = unpacked
	}
	if _, err := tar.NewReader(plain).Next(); err != nil {
		return errNoArchive
	}
	return nil
}
