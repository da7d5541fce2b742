package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/datakeys"
)

// Encryption asks for the state of the encryption of objects.
func Encryption(ctx context.Context, config *rest.Config) (*adminapi.EncryptionAnswer, error) {
	return encryption(ctx, config, http.MethodGet, EncryptionChange{})
}

// EncryptionChange is a change of the encryption.
type EncryptionChange struct {
	Change    datakeys.Change
	Resources []string // to encrypt besides those that are
	Decrypt   []string // to encrypt no more
	DryRun    bool     // only tell whether it would be refused
}

// Make asks for the change.
func (e EncryptionChange) Make(ctx context.Context, config *rest.Config) (*adminapi.EncryptionAnswer, error) {
	return encryption(ctx, config, http.MethodPost, e)
}

// lookEncryption is the command that shows how far a change is.
const lookEncryption = "`barque secrets-encrypt status`"

// AwaitEncryption waits for the end of a change, up to a timeout. It reports each step.
func AwaitEncryption(ctx context.Context, config *rest.Config, answer *adminapi.EncryptionAnswer, wait time.Duration, tell func(text string)) (*adminapi.EncryptionAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	told, waiting, next := datakeys.AtRest, "", time.Time{}
	for answer.Step != datakeys.AtRest {
		now := strings.Join(answer.Waiting, ", ")
		if answer.Step != told {
			told, waiting, next = answer.Step, now, time.Now().Add(keysToldAfter)
			tell(answer.Text)
		} else if time.Now().After(next) && now != "" && now != waiting {
			waiting, next = now, time.Now().Add(keysToldAfter)
			tell("waiting: " + now)
		}
		select {
		case <-ctx.Done():
			return nil, unfinishedEncryption(answer)
		case <-time.After(keysEvery):
		}
		newer, err := Encryption(ctx, config)
		switch {
		case err == nil:
			answer = newer
		case ctx.Err() != nil:
			return nil, unfinishedEncryption(answer)
		}
		// A server that does not answer may be away for a moment; the change continues.
	}
	return answer, nil
}

func unfinishedEncryption(answer *adminapi.EncryptionAnswer) error {
	reason := ""
	if len(answer.Waiting) > 0 {
		reason = ", waiting: " + strings.Join(answer.Waiting, ", ")
	}
	return &exitcode.Error{Code: exitcode.Unfinished, Err: fmt.Errorf("the change is under way (%s%s). It continues by itself; %s shows its progress", answer.Text, reason, lookEncryption)}
}

func encryption(ctx context.Context, config *rest.Config, method string, change EncryptionChange) (*adminapi.EncryptionAnswer, error) {
	client, end, err := Once(config, 30*time.Second)
	if err != nil {
		return nil, err
	}
	defer end()
	request := client.Verb(method).AbsPath(adminapi.EncryptionPath)
	if method == http.MethodPost {
		request = request.Param("change", string(change.Change))
		for _, r := range change.Resources {
			request = request.Param("resource", r)
		}
		for _, r := range change.Decrypt {
			request = request.Param("decrypt", r)
		}
		if change.DryRun {
			request = request.Param("dryRun", "true")
		}
	}
	data, err := request.DoRaw(ctx)
	answer := new(adminapi.EncryptionAnswer)
	if json.Unmarshal(data, answer) == nil && answer.Error != "" {
		switch {
		case answer.Refused:
			return nil, &exitcode.Error{Code: exitcode.Refused, Err: fmt.Errorf("refused, nothing was changed: %s", answer.Error)}
		case answer.Unfinished:
			return nil, &exitcode.Error{Code: exitcode.Unfinished, Err: fmt.Errorf("%s; %s shows whether it was begun", answer.Error, lookEncryption)}
		case answer.NoLeader:
			err := error(&exitcode.Error{Code: exitcode.NoQuorum, Err: fmt.Errorf("%s; see `barque cluster status` for the cause and the remedy", answer.Error)})
			if method != http.MethodGet {
				err = Unchanged(err)
			}
			return nil, err
		}
		return nil, fmt.Errorf("%s; see `barque cluster status` for the cause and the remedy", answer.Error)
	}
	if method != http.MethodGet && MaybeDone(err) {
		return nil, &exitcode.Error{Code: exitcode.Unfinished, Err: fmt.Errorf("whether it was begun is not known: %w; %s shows it", said(data, err), lookEncryption)}
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s for the encryption of objects: %w", config.Host, WithAdvice(config, said(data, err)))
	}
	return answer, nil
}

// WriteEncryption writes a status for people.
func WriteEncryption(w io.Writer, s *datakeys.Status) error {
	state := "off: objects are in clear on the disks of the servers"
	if s.Enabled {
		state = "on"
	}
	fmt.Fprintf(w, "encryption\t%s\nresources\t%s\nstep\t%s\n", state, strings.Join(s.Resources, ", "), s.Text)
	if len(s.Waiting) > 0 {
		fmt.Fprintf(w, "waiting\t%s\n", strings.Join(s.Waiting, ", "))
	}
	fmt.Fprintf(w, "objects in clear\t%d\n", s.Clear)
	if s.Problem != "" {
		fmt.Fprintf(w, "problem\t%s\n", s.Problem)
	}
	fmt.Fprintln(w, "\nKEY\tUSE\tMADE\tOBJECTS")
	for _, k := range s.Keys {
		use, made := "reads", k.Made.UTC().Format(time.RFC3339)
		if k.Writes {
			use = "writes and reads"
		}
		if k.Made.IsZero() {
			use, made = "missing: nobody can read these objects", "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", k.ID, use, made, k.Objects)
	}
	fmt.Fprintln(w, "\nSERVER\tSTATE\tGENERATION\tDISK")
	for _, server := range s.Servers {
		disk := "may have values from before the last change"
		if server.Cleaned {
			disk = "clean"
		}
		if server.Problem != "" {
			disk += ": " + server.Problem
		}
		fmt.Fprintf(w, "%s\t%s\t%d of %d\t%s\n", server.Name, server.State, server.Generation, s.Generation, disk)
	}
	return nil
}
