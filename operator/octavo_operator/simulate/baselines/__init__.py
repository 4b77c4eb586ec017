"""The autoscalers that ours is judged against, each as its own project documents it."""
