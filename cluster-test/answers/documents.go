package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// The paths of the OpenAPI documents.
const (
	documentV2 = "/openapi/v2"
	documents  = "/openapi/v3"
)

// enumsHeader begins the part of a description that lists an enumeration.
const enumsHeader = "Possible enum values:"

// statements are the leaves of a document by their paths, of which `/` separates the parts.
type statements map[string]string

// document returns an OpenAPI document.
func (s *server) document(ctx context.Context, path string) (map[string]any, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %.300s", path, res.Status, body)
	}
	var doc map[string]any
	return doc, json.Unmarshal(body, &doc)
}

// documents returns the paths of a server's documents.
func (s *server) documents(ctx context.Context) ([]string, error) {
	root, err := s.document(ctx, documents)
	if err != nil {
		return nil, err
	}
	paths, _ := root["paths"].(map[string]any)
	var out []string
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		out = append(out, documents+"/"+p)
	}
	return out, nil
}

// add takes the leaves of a part of a document. It leaves out two that say nothing of the API: the
// server's version, and CBOR, which upstream has behind a feature gate.
func (s statements) add(at string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if !strings.Contains(k, "cbor") && at+"/"+k != "/info/version" {
				s.add(at+"/"+k, e)
			}
		}
		if len(v) == 0 {
			s[at] = "{}"
		}
	case []any:
		for i, e := range unordered(at, v) {
			s.add(fmt.Sprint(at, "/", i), e)
		}
	default:
		s[at] = fmt.Sprint(v)
	}
}

// unordered sorts a list whose order has no meaning.
func unordered(at string, list []any) []any {
	switch at[strings.LastIndexByte(at, '/')+1:] {
	case "produces", "consumes":
		list = slices.DeleteFunc(list, func(v any) bool { return strings.Contains(fmt.Sprint(v), "cbor") })
	case "required", "parameters", "enum":
	default:
		return list
	}
	slices.SortFunc(list, func(a, b any) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return list
}

// withoutEnums removes the enumerations. Upstream's published documents are without them.
func (s statements) withoutEnums() {
	for at, v := range s {
		if strings.Contains(at, "/enum/") {
			delete(s, at)
		} else if head, _, found := strings.Cut(v, enumsHeader); found {
			if s[at] = strings.TrimSpace(head); s[at] == "" {
				delete(s, at)
			}
		}
	}
}

// served removes the paths that ours lacks from a document of version 2, and the definitions and
// parameters that no path refers to.
func served(theirs, ours map[string]any) {
	paths, _ := theirs["paths"].(map[string]any)
	known, _ := ours["paths"].(map[string]any)
	maps.DeleteFunc(paths, func(path string, _ any) bool { return known[path] == nil })
	reached := map[string]bool{}
	var reach func(v any)
	reach = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if to, ok := v["$ref"].(string); ok && !reached[to] {
				reached[to] = true
				part, name, _ := strings.Cut(strings.TrimPrefix(to, "#/"), "/")
				of, _ := theirs[part].(map[string]any)
				reach(of[name])
			}
			for _, e := range v {
				reach(e)
			}
		case []any:
			for _, e := range v {
				reach(e)
			}
		}
	}
	reach(paths)
	for _, part := range []string{"definitions", "parameters"} {
		of, _ := theirs[part].(map[string]any)
		maps.DeleteFunc(of, func(name string, _ any) bool { return !reached["#/"+part+"/"+name] })
	}
}

// compareStatements returns the differences of ours from theirs, sorted, and the number of
// equal ones.
func compareStatements(theirs, ours statements) (differ []string, same int) {
	for at, want := range theirs {
		got, ok := ours[at]
		switch {
		case !ok:
			differ = append(differ, fmt.Sprintf("%s: only upstream: %q", at, want))
		case got != want:
			differ = append(differ, fmt.Sprintf("%s: upstream %q, Barque %q", at, want, got))
		default:
			same++
		}
	}
	for at, got := range ours {
		if _, ok := theirs[at]; !ok {
			differ = append(differ, fmt.Sprintf("%s: only Barque: %q", at, got))
		}
	}
	slices.Sort(differ)
	return differ, same
}

// compareDocuments prints where the OpenAPI documents of version 3 differ that both servers have.
func compareDocuments(ctx context.Context, w io.Writer, theirs, ours *server, show int) error {
	paths, err := theirs.documents(ctx)
	if err != nil {
		return fmt.Errorf("asking kube-apiserver: %w", err)
	}
	known, err := ours.documents(ctx)
	if err != nil {
		return fmt.Errorf("asking Barque: %w", err)
	}
	same, all := 0, 0
	for _, path := range paths {
		if !slices.Contains(known, path) {
			fmt.Fprintf(w, "%s: only upstream has this document\n", path)
			continue
		}
		both := [2]statements{{}, {}}
		for i, s := range []*server{theirs, ours} {
			doc, err := s.document(ctx, path)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			both[i].add("", doc)
		}
		differ, alike := compareStatements(both[0], both[1])
		for _, line := range differ[:min(len(differ), show)] {
			fmt.Fprintf(w, "%s %s\n", path, line)
		}
		if more := len(differ) - show; more > 0 {
			fmt.Fprintf(w, "and %d more\n", more)
		}
		same, all = same+alike, all+alike+len(differ)
	}
	fmt.Fprintf(w, "%d statements of OpenAPI documents: %s the same\n", all, share(same, all))
	return nil
}
