// Package release reads releases of Barque: archives of the program with their checksums, and the
// signature of the checksums.
//
// A release is a folder with SHA256SUMS, SHA256SUMS.minisig and one archive for each architecture,
// barque-VERSION-linux-ARCH.tar.gz. The program is the file barque in the archive's only folder.
// The signature is minisign's (https://jedisct1.github.io/minisign/). It covers the checksums,
// which cover the archives with their names, and so the version.
package release

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"aead.dev/minisign"
)

// Names of files of a release.
const (
	SumsFile      = "SHA256SUMS"
	SignatureFile = SumsFile + ".minisig"
	Program       = "barque" // in an archive
)

// MaxFile bounds the files beside archives, MaxArchive an archive, and MaxProgram the program, in
// bytes.
const (
	MaxFile    = 1 << 20
	MaxArchive = 1 << 30
	MaxProgram = 2 << 30
)

var archiveName = regexp.MustCompile(`^barque-(v?[0-9][0-9A-Za-z.-]*)-linux-([a-z0-9]+)\.tar\.gz$`)

// Release is a release by its checksums.
type Release struct {
	Version string // with a v
	// Archives are the names of archives, by the architecture as Go has it.
	Archives map[string]string
	// Digests are SHA-256 in hexadecimal, by the name of the file.
	Digests map[string]string
}

// Architectures are those that the release has, sorted.
func (r *Release) Architectures() []string {
	var out []string
	for arch := range r.Archives {
		out = append(out, arch)
	}
	slices.Sort(out)
	return out
}

// ArchiveName is the name of an archive.
func ArchiveName(version, arch string) string {
	return fmt.Sprintf("barque-%s-linux-%s.tar.gz", version, arch)
}

// ParseArchiveName returns the version and the architecture in the name of an archive.
func ParseArchiveName(name string) (version, arch string, ok bool) {
	m := archiveName.FindStringSubmatch(name)
	if m == nil {
		return "", "", false
	}
	return "v" + strings.TrimPrefix(m[1], "v"), m[2], true
}

// Parse reads the content of SHA256SUMS. Files that are no archives are left out. All archives must
// have one version.
func Parse(sums []byte) (*Release, error) {
	r := &Release{Archives: map[string]string{}, Digests: map[string]string{}}
	lines := bufio.NewScanner(bytes.NewReader(sums))
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("%s, line %d: want a checksum and a name", SumsFile, n)
		}
		name := strings.TrimPrefix(fields[1], "*") // of a binary file, as sha256sum writes it
		version, arch, ok := ParseArchiveName(name)
		if !ok {
			continue
		}
		if raw, err := hex.DecodeString(fields[0]); err != nil || len(raw) != sha256.Size {
			return nil, fmt.Errorf("%s, line %d: %q is no SHA-256", SumsFile, n, fields[0])
		}
		if r.Version != "" && r.Version != version {
			return nil, fmt.Errorf("%s has archives of two versions, %s and %s", SumsFile, r.Version, version)
		}
		if other := r.Archives[arch]; other != "" {
			return nil, fmt.Errorf("%s has two archives for %s, %s and %s", SumsFile, arch, other, name)
		}
		r.Version, r.Archives[arch], r.Digests[name] = version, name, strings.ToLower(fields[0])
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", SumsFile, err)
	}
	if len(r.Archives) == 0 {
		return nil, fmt.Errorf("%s has no archive %s", SumsFile, ArchiveName("VERSION", "ARCH"))
	}
	return r, nil
}

// Keys are the public keys of minisign that releases are believed by.
type Keys []minisign.PublicKey

// ReadKeys reads keys. Each is the text of a key, or the path of a file with it.
func ReadKeys(given []string) (Keys, error) {
	var keys Keys
	for _, text := range given {
		if own, err := ParseKeys([]string{text}); err == nil {
			keys = append(keys, own...)
			continue
		}
		data, err := os.ReadFile(text)
		if err != nil {
			return nil,
				fmt.Errorf("the release key %q is no public key of minisign, and no file with one: %w", text, err)
		}
		own, err := ParseKeys([]string{string(data)})
		if err != nil {
			return nil, fmt.Errorf("the file %s: %w", text, err)
		}
		keys = append(keys, own...)
	}
	return keys, nil
}

// ParseKeys reads the texts of keys.
func ParseKeys(texts []string) (Keys, error) {
	var keys Keys
	for _, text := range texts {
		var key minisign.PublicKey
		if err := key.UnmarshalText([]byte(strings.TrimSpace(text))); err != nil {
			return nil, fmt.Errorf("it has no public key of minisign: %w", err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// Texts returns the keys as ParseKeys reads them.
func (k Keys) Texts() (out []string) {
	for _, key := range k {
		text, err := key.MarshalText()
		if err != nil {
			continue // which a parsed key does not return
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		out = append(out, lines[len(lines)-1])
	}
	return out
}

// ErrSignature is part of an error about a signature that is missing or wrong.
var ErrSignature = errors.New("the release is not signed by a key that is believed here")

// Verify returns an error unless one of the keys has signed the checksums. Without keys nothing is
// believed.
func (k Keys) Verify(sums, signature []byte) error {
	if len(signature) == 0 {
		return fmt.Errorf("%w: it has no %s", ErrSignature, SignatureFile)
	}
	for _, key := range k {
		if minisign.Verify(key, sums, signature) {
			return nil
		}
	}
	var s minisign.Signature
	if err := s.UnmarshalText(signature); err != nil {
		return fmt.Errorf("%w: %s is no signature of minisign: %w", ErrSignature, SignatureFile, err)
	}
	var ids []string
	for _, key := range k {
		ids = append(ids, fmt.Sprintf("%X", key.ID()))
	}
	return fmt.Errorf("%w: it is signed by the key %X, and the keys believed here are %s", ErrSignature, s.KeyID,
		strings.Join(ids, ", "))
}

// DigestOf returns the SHA-256 of a file, in hexadecimal.
func DigestOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Digest returns the SHA-256 of data, in hexadecimal.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Extract writes the program of an archive to w. Everything else in it is left out.
func Extract(archive io.Reader, w io.Writer) error {
	unzipped, err := gzip.NewReader(archive)
	if err != nil {
		return fmt.Errorf("the archive is not compressed with gzip: %w", err)
	}
	for files := tar.NewReader(unzipped); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("the archive has no file %s in its folder", Program)
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		dir, name := path.Split(path.Clean(h.Name))
		if h.Typeflag != tar.TypeReg || name != Program || strings.Count(dir, "/") != 1 {
			continue
		}
		if h.Size > MaxProgram {
			return fmt.Errorf("the program in the archive has %d bytes: want %d at most", h.Size, int64(MaxProgram))
		}
		if _, err := io.Copy(w, files); err != nil {
			return fmt.Errorf("unpack the program: %w", err)
		}
		return nil
	}
}

// Pack writes an archive with a program, for a build that is no release.
func Pack(w io.Writer, version, arch string, program *os.File) error {
	info, err := program.Stat()
	if err != nil {
		return err
	}
	zipped, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	files := tar.NewWriter(zipped)
	top := strings.TrimSuffix(ArchiveName(version, arch), ".tar.gz")
	if err := files.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: top + "/" + Program, Mode: 0o755,
		Size: info.Size()}); err != nil {
		return err
	}
	if _, err := io.Copy(files, program); err != nil {
		return err
	}
	return errors.Join(files.Close(), zipped.Close())
}
