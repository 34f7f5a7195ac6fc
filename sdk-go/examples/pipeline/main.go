// Command pipeline submits parts in one batch, and a task that depends on all of them; hello_worker
// runs them.
//
//	go run ./examples/pipeline [ENDPOINT]
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/cronoq/cronoq/sdk-go"
)

func main() {
	var options cronoq.ClientOptions
	if len(os.Args) > 1 {
		options.Endpoint = os.Args[1]
	}
	if err := run(context.Background(), options); err != nil {
		log.Fatal(err)
	}
}

// run submits everything at once: it is admitted whole or not at all.
func run(ctx context.Context, options cronoq.ClientOptions) error {
	client, err := cronoq.NewClient(options)
	if err != nil {
		return err
	}
	defer client.Close()
	name := cronoq.NewKey()
	total := cronoq.TaskSpec{Kind: "total", Key: name + "/total", Priority: cronoq.High}
	var specs []cronoq.TaskSpec
	for number := range 10 {
		key := fmt.Sprintf("%s/%d", name, number)
		specs = append(specs, cronoq.TaskSpec{Kind: "square", Payload: number, Key: key})
		total.Deps = append(total.Deps, cronoq.Dep{Target: cronoq.ByKey(key)})
	}
	handles, err := client.SubmitBatch(ctx, append(specs, total))
	if err != nil {
		return err
	}
	sum, err := cronoq.Result[int](ctx, handles[len(handles)-1])
	if err != nil {
		return err
	}
	fmt.Println("the sum of ten squares is", sum)
	return nil
}
