package part

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/upgrade/release"
)

// Releases are the releases that a server has for other nodes. A file that comes is under its name
// with an ending, and goes on where it ended.
type Releases string

const coming = ".part"

// versionName is the form of a version. It is a name of a folder, too.
var versionName = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.-]*$`)

// ErrName is returned for a version, or a name of a file, that no release has.
var ErrName = errors.New("it is no file of a release")

// path returns the path of a file. Its names come from requests.
func (r Releases) path(version, name string) (string, error) {
	_, _, archive := release.ParseArchiveName(name)
	if !versionName.MatchString(version) || !archive && name != release.SumsFile && name != release.SignatureFile {
		return "", fmt.Errorf("%q of version %q: %w", name, version, ErrName)
	}
	return filepath.Join(string(r), version, name), nil
}

// Size returns how much of a file is there, and whether that is all.
func (r Releases) Size(version, name string) (size int64, whole bool, err error) {
	path, err := r.path(version, name)
	if err != nil {
		return 0, false, err
	}
	if info, err := os.Stat(path); err == nil {
		return info.Size(), true, nil
	}
	info, err := os.Stat(path + coming)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	return info.Size(), false, nil
}

// OffsetError is returned for a part that does not follow those that are there.
type OffsetError struct{ Have int64 }

func (e *OffsetError) Error() string { return fmt.Sprintf("%d bytes are there", e.Have) }

// Append adds to a file. The part begins at the offset, which is the present size.
func (r Releases) Append(version, name string, offset int64, from io.Reader) (size int64, err error) {
	path, err := r.path(version, name)
	if err != nil {
		return 0, err
	}
	if err := errors.Join(atomicfile.MakeDir(filepath.Dir(string(r))), atomicfile.MakeDir(string(r)),
		atomicfile.MakeDir(filepath.Dir(path))); err != nil {
		return 0, err
	}
	f, err := os.OpenFile(path+coming, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if offset == 0 && info.Size() > 0 {
		if err := f.Truncate(0); err != nil {
			return 0, err
		}
	} else if info.Size() != offset {
		return info.Size(), &OffsetError{info.Size()}
	}
	limit := int64(release.MaxArchive)
	if _, _, archive := release.ParseArchiveName(name); !archive {
		limit = release.MaxFile
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return 0, err
	}
	n, err := io.Copy(f, io.LimitReader(from, limit-offset))
	return offset + n, err
}

// Take makes a file that has come whole count, if its digest is right.
func (r Releases) Take(version, name, digest string) error {
	path, err := r.path(version, name)
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err == nil {
		if has, err := release.DigestOf(path); err != nil || has == digest {
			return err
		}
		if err := os.Remove(path); err != nil { // of another build of the version
			return err
		}
	}
	has, err := release.DigestOf(path + coming)
	switch {
	case err != nil:
		return err
	case has != digest:
		return fmt.Errorf("the checksum of %s is wrong: its SHA-256 is %s, and %s has %s", name, has,
			release.SumsFile, digest)
	}
	if err := os.Rename(path+coming, path); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// Write writes a small file of a release.
func (r Releases) Write(version, name string, data []byte) error {
	path, err := r.path(version, name)
	if err != nil {
		return err
	}
	if err := errors.Join(atomicfile.MakeDir(filepath.Dir(string(r))), atomicfile.MakeDir(string(r)),
		atomicfile.MakeDir(filepath.Dir(path))); err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o600)
}

// Read reads a small file of a release; nothing if it is not there.
func (r Releases) Read(version, name string) ([]byte, error) {
	path, err := r.path(version, name)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// Open opens a whole file.
func (r Releases) Open(version, name string) (*os.File, error) {
	path, err := r.path(version, name)
	if err != nil {
		return nil, err
	}
	return os.Open(path)
}

// Remove removes a release.
func (r Releases) Remove(version string) error {
	if !versionName.MatchString(version) {
		return fmt.Errorf("version %q: %w", version, ErrName)
	}
	return os.RemoveAll(filepath.Join(string(r), version))
}

// removeOthers removes all other releases.
func (r Releases) removeOthers(version string) error {
	entries, err := os.ReadDir(string(r))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.Name() != version {
			err = errors.Join(err, os.RemoveAll(filepath.Join(string(r), e.Name())))
		}
	}
	return err
}

// Serve answers with a file, or a range of it.
func (r Releases) Serve(w http.ResponseWriter, request *http.Request) {
	query := request.URL.Query()
	f, err := r.Open(query.Get("version"), query.Get("name"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, request, "", info.ModTime(), f)
}

// fetch gets a file from one of the servers, and takes it if its digest is right. It goes on where
// an earlier attempt has ended. got is called with the number of bytes so far.
func (r Releases) fetch(
	ctx context.Context, client *http.Client, from []string, version, name, digest string, got func(int64),
) error {
	path, err := r.path(version, name)
	if err != nil {
		return err
	}
	if has, err := release.DigestOf(path); err == nil && has == digest {
		return nil
	}
	var errs []error
	for _, url := range from {
		if err := r.fetchFrom(ctx, client, url, version, name, got); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := r.Take(version, name, digest); err != nil {
			errs = append(errs, fmt.Errorf("from %s: %w", url, err), os.Remove(path+coming))
			continue
		}
		return nil
	}
	return errors.Join(errs...)
}

func (r Releases) fetchFrom(
	ctx context.Context, client *http.Client, url, version, name string, got func(int64),
) error {
	have, _, err := r.Size(version, name)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	query := request.URL.Query()
	query.Set("version", version)
	query.Set("name", name)
	request.URL.RawQuery = query.Encode()
	if have > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", have))
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		have = 0
	case http.StatusPartialContent:
	case http.StatusRequestedRangeNotSatisfiable:
		return nil // all is there
	default:
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10)) // the status says enough
		return fmt.Errorf("%s answers %s: %s", url, response.Status, text)
	}
	_, err = r.Append(version, name, have, &counting{response.Body, have, got})
	return err
}

// FetchSmall gets a small file of a release from a server.
func FetchSmall(ctx context.Context, client *http.Client, url, version, name string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if version != "" {
		query := request.URL.Query()
		query.Set("version", version)
		query.Set("name", name)
		request.URL.RawQuery = query.Encode()
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, release.MaxFile+1))
	if err == nil && len(data) > release.MaxFile {
		err = fmt.Errorf("%s has more than %d bytes", url, release.MaxFile)
	}
	return data, err
}

// counting counts the bytes that are read.
type counting struct {
	io.Reader
	n   int64
	got func(int64)
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	c.got(c.n)
	return n, err
}
