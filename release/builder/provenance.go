package main

import (
	"encoding/json"
	"path/filepath"
)

// statement is an in-toto statement (https://in-toto.io/Statement/v1) with SLSA's provenance
// (https://slsa.dev/spec/v1.0/provenance). It has no times of the build, so that the same commit
// gives the same bytes.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     predicate  `json:"predicate"`
}

type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

type predicate struct {
	BuildDefinition definition `json:"buildDefinition"`
	RunDetails      details    `json:"runDetails"`
}

type definition struct {
	BuildType            string         `json:"buildType"`
	ExternalParameters   map[string]any `json:"externalParameters"`
	InternalParameters   map[string]any `json:"internalParameters"`
	ResolvedDependencies []resource     `json:"resolvedDependencies"`
}

type details struct {
	Builder struct {
		ID string `json:"id"`
	} `json:"builder"`
}

// page describes the build, and its builder.
const page = repository + "/blob/main/docs/releases.md"

// provenance names the sources and the builder of the files of a release.
func (b *build) provenance(subjects sums, archs []string) ([]byte, error) {
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for _, f := range subjects {
		s.Subject = append(s.Subject, resource{Name: f.name, Digest: map[string]string{"sha256": f.hex}})
	}
	src := filepath.Join(b.work, "source")
	version, err := toolchain(src)
	if err != nil {
		return nil, err
	}
	d := &s.Predicate.BuildDefinition
	d.BuildType = page + "#how-one-is-made"
	d.ExternalParameters = map[string]any{"source": "git+" + repository + "@" + b.commit, "architectures": archs}
	d.InternalParameters = map[string]any{"version": b.version, "go": version, "sourceDateEpoch": b.time.Unix()}
	if b.reuse {
		d.InternalParameters["reused"] = schemas
	}
	d.ResolvedDependencies = []resource{
		{URI: "git+" + repository + "@" + b.commit, Digest: map[string]string{"gitCommit": b.commit}}}
	for _, name := range []string{"go.sum", "release/builder/go.sum"} {
		digest, err := sumOf(filepath.Join(src, name))
		if err != nil {
			return nil, err
		}
		d.ResolvedDependencies = append(d.ResolvedDependencies,
			resource{Name: name, URI: "git+" + repository + "@" + b.commit + "#" + name,
				Digest: map[string]string{"sha256": digest}})
	}
	d.ResolvedDependencies = append(d.ResolvedDependencies, resource{URI: "pkg:generic/go@" + version[2:]})
	for _, p := range b.inputs {
		d.ResolvedDependencies = append(d.ResolvedDependencies, resource{Name: p.name, URI: p.purl()})
	}
	s.Predicate.RunDetails.Builder.ID = page
	text, err := json.MarshalIndent(s, "", "  ")
	return append(text, '\n'), err
}
