package source

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"helm.sh/helm/v4/pkg/repo/v1"
	"sigs.k8s.io/yaml"
)

// maxSection bounds the part of an index that is about one chart, in bytes: a parsed document takes
// many times that.
const maxSection = 8 << 20

// fromRepository fetches a chart that the index of a repository has.
func (c *Chart) fromRepository(ctx context.Context, client *http.Client) ([]byte, error) {
	base := strings.TrimSuffix(c.Repo, "/") + "/"
	body, err := c.open(ctx, client, c.Repo, base+"index.yaml")
	if err != nil {
		return nil, err
	}
	versions, err := entriesOf(io.LimitReader(body, maxIndex), c.Chart)
	_ = body.Close()
	if err != nil {
		return nil, fmt.Errorf("the index of %s: %w", redacted(c.Repo), err)
	}
	index := repo.IndexFile{Entries: map[string]repo.ChartVersions{c.Chart: versions}}
	index.SortEntries()
	found, err := index.Get(c.Chart, c.Version)
	if err != nil {
		return nil, fmt.Errorf("%s has no chart %s of version %q: %w", redacted(c.Repo), c.Chart, c.Version, err)
	}
	if len(found.URLs) == 0 {
		return nil, fmt.Errorf("the index of %s has no URL of %s %s", redacted(c.Repo), c.Chart, found.Version)
	}
	at, err := resolve(base, found.URLs[0])
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(at, "oci://") {
		other := *c
		other.Chart, other.Repo, other.Version = at, "", ""
		return other.pull(client)
	}
	data, err := c.get(ctx, client, c.Repo, at, maxArchive)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); found.Digest != "" && !strings.EqualFold(strings.TrimPrefix(found.Digest, "sha256:"),
		hex.EncodeToString(sum[:])) {
		return nil, fmt.Errorf("%s has not the digest of the index", redacted(at))
	}
	return data, nil
}

func resolve(base, at string) (string, error) {
	u, err := url.Parse(at)
	if err != nil {
		return "", fmt.Errorf("the URL of the archive: %w", err)
	}
	b, err := url.Parse(base)
	if err != nil {
		return "", err
	}
	out := b.ResolveReference(u)
	switch out.Scheme {
	case "http", "https", "oci":
	default:
		return "", fmt.Errorf("the index names an archive by %s, and not by https, http or oci", out.Scheme)
	}
	if !u.IsAbs() && out.RawQuery == "" {
		out.RawQuery = b.RawQuery // of signed URLs
	}
	return out.String(), nil
}

// entriesOf returns the versions of a chart in an index. A public index may have tens of megabytes,
// so only the lines about the chart are kept and parsed. Indexes in another form than Helm writes
// are parsed as a whole, up to maxSection.
func entriesOf(index io.Reader, chart string) (repo.ChartVersions, error) {
	var head, section bytes.Buffer
	lines := bufio.NewReaderSize(index, 64<<10)
	s := scan{chart: chart}
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long := bytes.Clone(line)
			for errors.Is(err, bufio.ErrBufferFull) && len(long) <= maxSection {
				line, err = lines.ReadSlice('\n')
				long = append(long, line...)
			}
			if line = long; len(line) > maxSection {
				return nil, errors.New("a line is too long")
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if head.Len() <= maxSection {
			head.Write(line)
		}
		if s.wants(line) {
			section.Write(line)
		}
		if section.Len() > maxSection {
			return nil, fmt.Errorf("more than %d bytes are about %s", maxSection, chart)
		}
		if err != nil {
			break
		}
	}
	var parsed struct {
		Entries map[string]repo.ChartVersions `json:"entries"`
	}
	if s.found {
		text := append([]byte("entries:\n"), section.Bytes()...)
		if err := yaml.Unmarshal(text, &parsed); err == nil && len(parsed.Entries[chart]) > 0 {
			return parsed.Entries[chart], nil
		}
	}
	if head.Len() > maxSection {
		return nil, fmt.Errorf("there is no chart %s", chart)
	}
	if err := yaml.Unmarshal(head.Bytes(), &parsed); err != nil {
		return nil, err
	}
	if len(parsed.Entries[chart]) == 0 {
		return nil, fmt.Errorf("there is no chart %s", chart)
	}
	return parsed.Entries[chart], nil
}

// scan finds the lines about a chart in an index.
type scan struct {
	chart     string
	inEntries bool
	indent    int // of the names of charts; 0 until one was seen
	inside    bool
	found     bool
}

// wants reports whether a line is about the chart.
func (s *scan) wants(line []byte) bool {
	text := strings.TrimRight(string(line), "\r\n ")
	trimmed := strings.TrimLeft(text, " ")
	if trimmed == "" || strings.HasPrefix(trimmed, "#") {
		return s.inside
	}
	indent := len(text) - len(trimmed)
	if indent == 0 && !strings.HasPrefix(trimmed, "- ") {
		s.inEntries, s.inside = trimmed == "entries:", false
		return false
	}
	if !s.inEntries {
		return false
	}
	isKey := strings.HasSuffix(trimmed, ":") && !strings.HasPrefix(trimmed, "- ")
	if s.indent == 0 && isKey {
		s.indent = indent
	}
	if isKey && indent == s.indent {
		s.inside = strings.Trim(strings.TrimSuffix(trimmed, ":"), `"'`) == s.chart
		s.found = s.found || s.inside
	}
	return s.inside
}
