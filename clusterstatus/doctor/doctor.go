// Package doctor collects the data for finding faults of a cluster: the diagnosis of each server,
// data of the API, and data of this machine. Package clusterstatus interprets them. All of it goes
// into one archive, without secrets.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/clusterstatus/ask"
	"github.com/barque/barque/clusterstatus/examination"
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/internal/terminal"
)

// Examination holds the collected data and the findings.
type Examination struct {
	examination.Examination
	files   map[string]string // by name, of the cluster and of this machine
	objects objects
}

// Options select the examined data besides the servers' diagnoses.
type Options struct {
	Machine func() []check.Finding // checks a node's requirements of this machine
	File    string                 // the archive to be written, if any
	Tell    func(text string)      // progress
}

// Examine collects the data, adds findings, and writes the archive. An unanswered request is a
// finding as well.
func Examine(ctx context.Context, asks *ask.Asker, o Options) (*Examination, error) {
	e := newExamination(asks.Procedures())
	var here map[string]string // this machine's files
	var looking sync.WaitGroup
	// ends within journalPatience, and the checks
	looking.Go(func() { here = localFiles(ctx, asks.DataDir, o.Machine()) })
	defer looking.Wait()
	h, err := asks.Ask(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && !ask.IsNoAnswer(err):
		return nil, err
	case err != nil:
		e.Add(
			clusterstatus.Warning{Severity: clusterstatus.Critical, Text: err.Error(), On: "each server",
				Mend: e.Procedures.Any})
	default:
		e.Status = h.Status()
		o.Tell("asking " + terminal.Plural(len(e.Status.ServerNames()), "server", "servers"))
		e.collect(ctx, h, asks.Timeout)
	}
	looking.Wait()
	if e.files == nil {
		e.files = map[string]string{}
	}
	maps.Copy(e.files, here)
	if err := e.devNodes(asks.DevDir()); err != nil {
		o.Tell(fmt.Sprintf("this machine's files of the dev cluster's nodes are missing in the archive: %v", err))
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e.Diagnose()
	e.addWorkloads()
	if o.File != "" {
		if err := e.save(o.File); err != nil {
			return nil, fmt.Errorf("write %s: %w", o.File, err)
		}
		e.File = o.File
	}
	return e, nil
}

// addWorkloads adds the findings on workloads, after those on the cluster.
func (e *Examination) addWorkloads() {
	found, more := e.objects.workloads(e.Time)
	for _, w := range found {
		e.Add(w)
	}
	if more > 0 {
		e.Note("%s have such faults, too: pods.txt in the file lists all pods",
			terminal.Plural(more, "more workload", "more workloads"))
	}
}

// Err returns the error of a command that has printed the findings: an exit code, or nil.
func (e *Examination) Err() error {
	switch {
	case e.Status == nil:
		return &exitcode.Error{Code: exitcode.NoAnswer}
	case e.Status.Health == clusterstatus.Healthy && len(e.Findings) > 0:
		return &exitcode.Error{Code: exitcode.Degraded}
	}
	return e.Status.Health.Err()
}

// newExamination returns an examination without findings.
func newExamination(by clusterstatus.Procedures) *Examination {
	return &Examination{Examination: examination.Examination{Time: time.Now().UTC(), Procedures: by}}
}

// Timeouts of the doctor. A server that does not answer costs no more, and delays no other request.
const (
	collectPatience   = 30 * time.Second
	diagnosisPatience = 10 * time.Second // of each request for a diagnosis
	silentPatience    = 2 * time.Second  // the same, of a server that has just been asked for its status in vain
)

// collect asks every server for its diagnosis. It asks the answering server with the best view for
// the API's data. Each request to the API has the given timeout.
func (e *Examination) collect(ctx context.Context, h *ask.Heard, each time.Duration) {
	ctx, cancel := context.WithTimeoutCause(ctx, collectPatience, &remote.NoAnswerError{Within: collectPatience})
	defer cancel()
	best := h.At[e.Status.From[0]]
	e.Silent = map[string]string{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	var untold, unread error
	asking.Go(func() { e.files, e.objects, unread = apiFiles(ctx, h.To(best), each) })
	asking.Go(func() { e.Network, untold = networkFaults(ctx, h.To(best), each) })
	for _, m := range e.Status.Members {
		if m.Role != "server" {
			continue
		}
		asking.Go(func() {
			d, err := diagnosisOf(ctx, h, m)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				e.Silent[m.Name] = err.Error()
				return
			}
			e.Servers = append(e.Servers, *d)
		})
	}
	asking.Wait()
	if untold != nil {
		e.Note("the nodes' network faults are unknown: %v", untold)
	}
	if unread != nil {
		e.Note("unknown whether all workloads run: %v", unread)
	}
	slices.SortFunc(e.Servers, func(a, b clusterstatus.Diagnosis) int { return strings.Compare(a.Server, b.Server) })
}

// diagnosisOf asks a server for its diagnosis at its known address. Otherwise it asks through a
// server that has answered, and then at the address in the others' view. A server that did not
// answer for the status is asked in these ways at once, for a short time.
func diagnosisOf(ctx context.Context, h *ask.Heard, m clusterstatus.MemberStatus) (*clusterstatus.Diagnosis, error) {
	hosts := h.Hosts(m)
	if m.Store == nil {
		return firstDiagnosis(ctx, h, hosts, m.Name)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, diagnosisPatience, &remote.NoAnswerError{Within: diagnosisPatience})
	defer cancel()
	var all error
	for _, host := range hosts {
		if ctx.Err() != nil {
			break // it is slow, and would only have the same work again
		}
		d, err := askDiagnosis(ctx, h, host, m.Name, diagnosisPatience)
		if err == nil {
			return d, nil
		}
		all = errors.Join(all, err)
	}
	return nil, all
}

// firstDiagnosis asks a silent server through all hosts at once.
func firstDiagnosis(
	ctx context.Context, h *ask.Heard, hosts []string, server string,
) (*clusterstatus.Diagnosis, error) {
	answers, errs := make([]*clusterstatus.Diagnosis, len(hosts)), make([]error, len(hosts))
	var asking sync.WaitGroup
	for i, host := range hosts {
		asking.Go(func() { answers[i], errs[i] = askDiagnosis(ctx, h, host, server, silentPatience) })
	}
	asking.Wait()
	for _, d := range answers {
		if d != nil {
			return d, nil
		}
	}
	return nil, errors.Join(errs...)
}

// askDiagnosis asks the server for its diagnosis through a host.
func askDiagnosis(
	ctx context.Context, h *ask.Heard, host, server string, patience time.Duration,
) (*clusterstatus.Diagnosis, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, &remote.NoAnswerError{Within: patience})
	defer cancel()
	d := new(clusterstatus.Diagnosis)
	path := clusterstatus.DiagnosisPath + "?" + adminapi.RelayParameter + "=" + url.QueryEscape(server)
	if err := remote.GetJSON(ctx, h.Config, host, path, d); err != nil {
		return nil, fmt.Errorf("%s: %w", host, err)
	}
	return d, nil
}

// Write shows the findings to people, and where the rest is.
func (e *Examination) Write(to io.Writer, on terminal.Screen) error {
	w := new(strings.Builder) // so that it is written completely, or an error is returned
	if len(e.Findings) == 0 {
		fmt.Fprintln(w, on.Paint("nothing is found to be wrong", terminal.Good))
	} else if err := clusterstatus.WriteWarnings(w, on, e.Findings); err != nil {
		return err
	}
	for _, name := range sortedKeys(e.Silent) {
		way := "Run this on its machine as well."
		if e.Procedures.Here {
			way = "The data in its directory are in the file."
		}
		fmt.Fprintln(w,
			on.Wrap(
				fmt.Sprintf("%s gave no diagnosis: %s. %s", name, strings.ReplaceAll(e.Silent[name], "\n", "; "), way),
				0))
	}
	for _, note := range e.Notes {
		fmt.Fprintln(w, on.Wrap("note: "+note, 0))
	}
	if e.File != "" {
		info, err := os.Stat(e.File)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "all of it is in %s (%s); no secrets were put into it, but names and addresses were\n", e.File,
			terminal.Bytes(info.Size()))
	}
	_, err := io.WriteString(to, w.String())
	return err
}
