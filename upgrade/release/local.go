package release

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Local is a release whose files are on this machine.
type Local struct {
	Release
	Sums, Signature []byte
	// Paths are those of the archives that are there, by their names.
	Paths map[string]string
	temp  string
}

// Close removes files that were made for this process.
func (l *Local) Close() error {
	if l.temp == "" {
		return nil
	}
	return os.RemoveAll(l.temp)
}

// Names are those of the archives that are there, sorted.
func (l *Local) Names() (out []string) {
	for name := range l.Paths {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Open reads a release from a folder, an archive with the checksums beside it, a URL of a folder,
// or a program. A program, and an archive without checksums, are never signed. about returns the
// version of a program. wants reports whether the archive for an architecture is needed.
func Open(
	ctx context.Context, from string, about func(program string) (version string, err error),
	wants func(arch string) bool,
) (*Local, error) {
	if strings.HasPrefix(from, "https://") || strings.HasPrefix(from, "http://") {
		return download(ctx, from, wants)
	}
	info, err := os.Stat(from)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return openDir(from, wants)
	}
	_, _, archive := ParseArchiveName(filepath.Base(from))
	if !archive {
		return pack(from, about)
	}
	l, err := readSums(filepath.Dir(from))
	if errors.Is(err, fs.ErrNotExist) {
		return unsummed(from)
	}
	if err != nil {
		return nil, err
	}
	return l, l.add(filepath.Base(from), from)
}

// readSums reads the checksums and the signature in a folder.
func readSums(dir string) (*Local, error) {
	sums, err := os.ReadFile(filepath.Join(dir, SumsFile))
	if err != nil {
		return nil, err
	}
	signature, err := os.ReadFile(filepath.Join(dir, SignatureFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	r, err := Parse(sums)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return &Local{Release: *r, Sums: sums, Signature: signature, Paths: map[string]string{}}, nil
}

// add adds an archive whose checksum is right.
func (l *Local) add(name, path string) error {
	want := l.Digests[name]
	if want == "" {
		return fmt.Errorf("%s has no %s", SumsFile, name)
	}
	digest, err := DigestOf(path)
	if err == nil && digest != want {
		err = fmt.Errorf("the checksum of %s is wrong: its SHA-256 is %s, and %s has %s", path, digest, SumsFile, want)
	}
	if err != nil {
		return err
	}
	l.Paths[name] = path
	return nil
}

func openDir(dir string, wants func(arch string) bool) (*Local, error) {
	l, err := readSums(dir)
	if err != nil {
		return nil, err
	}
	for arch, name := range l.Archives {
		if !wants(arch) {
			continue
		}
		if err := l.add(name, filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// unsummed is an archive without checksums.
func unsummed(path string) (*Local, error) {
	digest, err := DigestOf(path)
	if err != nil {
		return nil, err
	}
	return summed(filepath.Base(path), path, digest)
}

func summed(name, path, digest string) (*Local, error) {
	l := &Local{Sums: []byte(digest + "  " + name + "\n"), Paths: map[string]string{name: path}}
	r, err := Parse(l.Sums)
	if err != nil {
		return nil, err
	}
	l.Release = *r
	return l, nil
}

// architectures are those of ELF files, as Go has them.
var architectures = map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}

// pack makes an archive of a program.
func pack(program string, about func(program string) (version string, err error)) (*Local, error) {
	head, err := elf.Open(program)
	if err != nil {
		return nil, fmt.Errorf("%s is neither the archive of a release, %s, nor a program: %w", program,
			ArchiveName("VERSION", "ARCH"), err)
	}
	arch := architectures[head.Machine]
	head.Close()
	if arch == "" {
		return nil, fmt.Errorf("%s is a program for %v, for which there are no releases", program, head.Machine)
	}
	version, err := about(program)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	temp, err := os.MkdirTemp("", "barque-release-")
	if err != nil {
		return nil, err
	}
	name := ArchiveName(version, arch)
	path := filepath.Join(temp, name)
	l, err := func() (*Local, error) {
		in, err := os.Open(program)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		out, err := os.Create(path)
		if err != nil {
			return nil, err
		}
		h := sha256.New()
		if err := errors.Join(Pack(io.MultiWriter(out, h), version, arch, in), out.Close()); err != nil {
			return nil, err
		}
		return summed(name, path, hex.EncodeToString(h.Sum(nil)))
	}()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(temp))
	}
	l.temp = temp
	return l, nil
}

// download gets the wanted files of a release into a temporary folder.
func download(ctx context.Context, url string, wants func(arch string) bool) (*Local, error) {
	temp, err := os.MkdirTemp("", "barque-release-")
	if err != nil {
		return nil, err
	}
	l, err := func() (*Local, error) {
		base := strings.TrimSuffix(url, "/") + "/"
		if err := get(ctx, base+SumsFile, filepath.Join(temp, SumsFile), MaxFile); err != nil {
			return nil, err
		}
		if err := get(ctx, base+SignatureFile, filepath.Join(temp, SignatureFile), MaxFile); err != nil {
			return nil, fmt.Errorf("a release from a URL must be signed: %w", err)
		}
		l, err := readSums(temp)
		if err != nil {
			return nil, err
		}
		for arch, name := range l.Archives {
			if !wants(arch) {
				continue
			}
			path := filepath.Join(temp, name)
			if err := errors.Join(get(ctx, base+name, path, MaxArchive), l.add(name, path)); err != nil {
				return nil, err
			}
		}
		return l, nil
	}()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(temp))
	}
	l.temp = temp
	return l, nil
}

func get(ctx context.Context, url, path string, most int64) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true,
		ResponseHeaderTimeout: 30 * time.Second}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(response.Body, most+1))
	if err == nil && n > most {
		err = fmt.Errorf("%s has more than %d bytes", url, most)
	}
	return errors.Join(err, f.Close())
}
