package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// An interrupted run of OTHERS leaves its report. The run that takes it up keeps that file by
// another name, and runs all specs but those that have passed, or skipped themselves, in it.

// takeUp returns the specs that interrupted runs with the same selection have come to and that did
// not fail. Without resume it removes their reports instead.
func takeUp(dir string, which selection, resume bool) ([]spec, error) {
	_, drivers := which.apart()
	if resume {
		kept, err := keep(dir, which.name)
		keptDrivers, errDrivers := keep(dir, drivers.name)
		switch err := errors.Join(err, errDrivers); {
		case err != nil:
			return nil, err
		case !kept && !keptDrivers:
			return nil, fmt.Errorf("-resume: no report of an interrupted run is in %s: run without it", dir)
		}
	}
	kept, err := filepath.Glob(filepath.Join(dir, which.name+"*-until-*.json"))
	if err != nil {
		return nil, err
	}
	var out []spec
	for _, path := range kept {
		if !resume {
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			continue
		}
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		specs, err := readReport(file, func(s spec) bool {
			return which.wanted(s) && (s.State == "passed" || s.State == "skipped" && s.ran())
		})
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		out = union(out, specs)
	}
	if resume {
		say("%d specs have passed or skipped themselves in interrupted runs", len(out))
	}
	return out, nil
}

// keep renames the report of the last run, which the next one would replace. It reports whether
// there is one, or one that was kept before: a run may be interrupted before its own report.
func keep(dir, name string) (bool, error) {
	for n := 1; ; n++ {
		to := filepath.Join(dir, fmt.Sprintf("%s-until-%d.json", name, n))
		if _, err := os.Stat(to); err == nil {
			continue
		}
		err := os.Rename(filepath.Join(dir, name+".json"), to)
		if errors.Is(err, fs.ErrNotExist) {
			return n > 1, nil
		}
		return err == nil, err
	}
}

// union has all specs of now, those of earlier in place of them that did not run now, and the
// others of earlier.
func union(now, earlier []spec) []spec {
	at := map[string]int{}
	out := append([]spec(nil), now...)
	for i, s := range out {
		at[s.Name] = i
	}
	for _, s := range earlier {
		i, known := at[s.Name]
		switch {
		case !known:
			at[s.Name] = len(out)
			out = append(out, s)
		case !out[i].ran():
			out[i] = s
		}
	}
	return out
}

func names(specs []spec) []string {
	var out []string
	for _, s := range specs {
		out = append(out, s.Name)
	}
	return out
}
